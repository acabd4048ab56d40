#include "comm/vote_matrix.h"

#include <algorithm>
#include <set>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::testing {
namespace {

enum class Pattern { ones, zeros, random, ties, dissent };
constexpr Pattern patterns[] = {Pattern::ones, Pattern::zeros, Pattern::random, Pattern::ties, Pattern::dissent};

bool vote_of(Pattern pattern, int rank, int workers, int64_t element) {
  switch (pattern) {
    case Pattern::ones:
      return true;
    case Pattern::zeros:
      return false;
    case Pattern::ties:  // half of an even number of workers
      return (rank + element) % 2 == 0;
    case Pattern::dissent:
      return element % workers != rank;
    case Pattern::random:
      break;
  }
  uint64_t h = static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9ull;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebull;
  return (h >> 40 & 1) != 0;
}

bool result_of(Pattern pattern, int workers, int64_t element, int64_t any_elements, int64_t step) {
  int votes = 0;
  for (int r = 0; r < workers; ++r) votes += vote_of(pattern, r, workers, element) ? 1 : 0;
  if (element < any_elements) return votes > 0;
  if (2 * votes == workers) return vote_of(pattern, static_cast<int>(step % workers), workers, element);
  return 2 * votes > workers;
}

// Element i is bit i % 64 of word i / 64; elements beyond `elements` are 0.
template <class Bit>
void set_bits(Backend& backend, const Tensor& words, int64_t elements, Bit bit) {
  std::vector<uint64_t> host(static_cast<size_t>(words.elements()));
  for (int64_t i = 0; i < elements; ++i) host[static_cast<size_t>(i / 64)] |= uint64_t{bit(i)} << (i % 64);
  if (host.empty()) return;
  backend.copy_from_host(backend.compute_stream(), host.data(), words);
  backend.compute_stream().synchronize();
}

template <class Bit>
int64_t first_difference(Backend& backend, const Tensor& words, int64_t elements, Bit bit) {
  std::vector<uint64_t> host(static_cast<size_t>(words.elements()));
  if (!host.empty()) backend.copy_to_host(backend.compute_stream(), words, host.data());
  for (int64_t i = 0; i < elements; ++i)
    if ((host[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != uint64_t{bit(i)}) return i;
  return -1;
}

Tensor words_of(Backend& backend, int64_t words) { return backend.allocate({words}, DType::int64, MemoryCategory::gradients, "votes"); }

}  // namespace

int VoteMatrix::nodes() const {
  std::set<int> found;
  for (int r = 0; r < group.size(); ++r) found.insert(group.node(r));
  return static_cast<int>(found.size());
}

std::vector<VoteTransportKind> VoteMatrix::kinds() const { return possible_vote_transports({group.size(), nodes(), 1}); }

void VoteMatrix::results() {
  const int workers = group.size();
  for (const VoteTransportKind kind : kinds()) {
    const auto transport = make_vote_transport(backend, group, kind, large);
    check(transport->kind() == kind, text("kind of ", name_of(kind)));
    int64_t step = 0;
    std::vector<std::pair<int64_t, Pattern>> cases;
    for (size_t i = 0; i < sizes.size(); ++i) cases.emplace_back(sizes[i], patterns[i % std::size(patterns)]);
    for (const Pattern pattern : patterns) cases.emplace_back(sizes.back(), pattern);
    cases.emplace_back(large, Pattern::random);
    cases.emplace_back(large, Pattern::ties);
    for (const auto& [words, pattern] : cases) {
      const int64_t any_words = std::vector<int64_t>{0, std::min<int64_t>(words, 1), words / 2, words}[static_cast<size_t>(step % 4)];
      const Tensor data = words_of(backend, words);
      set_bits(backend, data, 64 * words, [&](int64_t i) { return vote_of(pattern, group.rank(), workers, i); });
      transport->vote(stream, data, any_words, step);
      stream.record().wait();
      const int64_t at =
          first_difference(backend, data, 64 * words, [&](int64_t i) { return result_of(pattern, workers, i, 64 * any_words, step); });
      check(at < 0, text(name_of(kind), ", ", words, " words, ", any_words, " of header, pattern ", static_cast<int>(pattern), ", step ",
                         step, ": bit ", at, " differs"));
      step += 1 + workers / 2;
    }
  }
}

void VoteMatrix::odd_bits() {
  for (const VoteTransportKind kind : kinds()) {
    const auto transport = make_vote_transport(backend, group, kind, 65);
    for (const int64_t elements : {1, 7, 8, 31, 32, 33, 63, 64, 65, 4097}) {
      const Tensor data = words_of(backend, (elements + 63) / 64);
      set_bits(backend, data, elements, [&](int64_t i) { return vote_of(Pattern::random, group.rank(), group.size(), i); });
      transport->vote(stream, data, 0, elements);
      stream.record().wait();
      const int64_t at =
          first_difference(backend, data, elements, [&](int64_t i) { return result_of(Pattern::random, group.size(), i, 0, elements); });
      check(at < 0, text(name_of(kind), ": bit ", at, " of ", elements, " differs"));
    }
  }
}

void VoteMatrix::bytes() {
  const int64_t workers = group.size();
  // The schedule of an all-gather among more ranks is a ring: other bytes leave the nodes.
  const bool direct = workers <= 8 || nodes() == 1;
  for (const VoteTransportKind kind : kinds()) {
    const int64_t equal = 48 * workers;
    for (const int64_t words : {int64_t{0}, int64_t{1}, workers - 1, equal, equal + 1}) {
      const auto transport = make_vote_transport(backend, group, kind, words);
      const Tensor data = words_of(backend, words);
      set_bits(backend, data, 64 * words, [&](int64_t i) { return i % 3 == 0; });
      const TrafficBytes before = transport->traffic();
      transport->vote(stream, data, 0, 1);
      stream.record().wait();
      const TrafficBytes after = transport->traffic();
      const double sent[] = {static_cast<double>(after.inside - before.inside), static_cast<double>(after.between - before.between)};
      const std::vector<double> all = group.all_reduce(sent, ReduceOperation::sum);
      VoteBytes expected = vote_bytes(kind, {workers, nodes(), words});
      if (kind == VoteTransportKind::int8_sum && 64 * words <= 16384) {  // gathered whole
        expected.total = expected.total / 2 * workers;
        expected.between = expected.between / 2 * workers;
      }
      const std::string what = text(name_of(kind), " on ", words, " words: ");
      check(all[0] + all[1] == static_cast<double>(expected.total),
            text(what, "sent ", all[0] + all[1], " bytes, expected ", expected.total));
      if (direct) check(all[1] == static_cast<double>(expected.between), text(what, all[1], " bytes left nodes, not ", expected.between));
      if (words != equal) continue;
      check((sent[0] + sent[1]) * static_cast<double>(workers) == static_cast<double>(expected.total),
            text(what, "this rank sent ", sent[0] + sent[1], " of ", expected.total, " bytes"));
      if (kind != VoteTransportKind::packed_scatter) continue;
      const Tensor numbers = backend.allocate({64 * words}, DType::float32, MemoryCategory::gradients, "fp32");
      backend.zero(stream, numbers);
      const int64_t bytes_before = group.bytes_sent();
      group.all_reduce(stream, numbers, ReduceOperation::sum);
      stream.record().wait();
      if (4 * 64 * words > 16384)
        check(static_cast<double>(group.bytes_sent() - bytes_before) == 32 * (sent[0] + sent[1]), "32 times below the fp32 all-reduce");
    }
  }
}

void VoteMatrix::choice() {
  const LinkCost link = measure_link(backend, group, stream);
  const std::vector<std::string> seen = group.all_gather_text(text(link.latency_seconds, " ", link.seconds_per_byte));
  for (const std::string& theirs : seen) check(theirs == seen[0], "the measured link is equal on all ranks");
  check(group.size() == 1 || link.latency_seconds > 0, "a link has latency");
  const auto transport = make_vote_transport(backend, group, VoteTransportKind::automatic, 1000);
  check(transport->kind() != VoteTransportKind::automatic, "automatic chooses");
  for (const std::string& theirs : group.all_gather_text(transport->choice())) check(theirs == transport->choice(), "equal choice");
  const bool measured = transport->choice().find(text(name_of(transport->kind()), ": ")) == 0 &&
                        transport->choice().find(" measured, ") < transport->choice().find(" predicted");
  // On a machine so busy that a message takes milliseconds, predictions alone may decide.
  check(group.size() == 1 || measured || link.latency_seconds > 1e-3, text("a small vote is chosen by measurement: ", transport->choice()));
  const std::string expected = group.size() == 1 ? "one worker" : text("for ", group.size(), " workers, 64,000 votes");
  check(transport->choice().find(expected) != std::string::npos, text("choice: ", transport->choice()));
  const Tensor data = words_of(backend, 1000);
  set_bits(backend, data, 64000, [&](int64_t i) { return vote_of(Pattern::random, group.rank(), group.size(), i); });
  transport->vote(stream, data, 1, 3);
  stream.record().wait();
  check(first_difference(backend, data, 64000, [&](int64_t i) { return result_of(Pattern::random, group.size(), i, 64, 3); }) < 0,
        "the chosen transport votes");
}

void VoteMatrix::refusals() {
  const auto expect = [&]<class Failure>(const Failure*, const char* what, const std::function<void()>& call, const std::string& named) {
    try {
      call();
      check(false, text(what, " was accepted"));
    } catch (const Failure& error) {
      check(std::string(error.what()).find(named) != std::string::npos, text(what, " says: ", error.what()));
    }
  };
  const ShapeError* shape = nullptr;
  const ConfigError* config = nullptr;
  const CommunicationError* communication = nullptr;
  for (const VoteTransportKind kind : kinds()) {
    const auto transport = make_vote_transport(backend, group, kind, 10);
    const auto vote = [&](const Tensor& data, int64_t any_words, int64_t step) { transport->vote(stream, data, any_words, step); };
    expect(
        shape, "a long buffer", [&] { vote(words_of(backend, 11), 0, 0); }, "int64[11]");
    expect(
        shape, "more header than words", [&] { vote(words_of(backend, 3), 4, 0); }, "4 header words");
    expect(
        shape, "a negative step", [&] { vote(words_of(backend, 3), 0, -1); }, "step -1");
    const Tensor floats = backend.allocate({10}, DType::float32, MemoryCategory::gradients, "floats");
    expect(
        shape, "floats", [&] { vote(floats, 0, 0); }, "float32[10]");
  }
  if (nodes() == 1)
    expect(
        config, "nodes that are not there", [&] { make_vote_transport(backend, group, VoteTransportKind::hierarchical, 1); },
        "distribution.vote_transport: hierarchical");
  if (group.size() == 1) return;
  const auto make = [&](VoteTransportKind kind, int64_t words) { make_vote_transport(backend, group, kind, words); };
  const int last = group.size() - 1;
  const bool odd = group.rank() == last;
  expect(
      communication, "another size", [&] { make(VoteTransportKind::packed_gather, odd ? 12 : 10); },
      text("rank 0 (", group.host(0), ") asks for packed_gather on 10 words, rank ", last));
  expect(
      communication, "another transport", [&] { make(odd ? VoteTransportKind::int8_sum : VoteTransportKind::packed_gather, 10); },
      "for int8_sum on 10 words");
  // Refused by all for what they disagree on, not by one for what it alone asks for.
  expect(
      communication, "levels asked for by one", [&] { make(odd ? VoteTransportKind::hierarchical : VoteTransportKind::packed_gather, 10); },
      "for hierarchical on 10 words");
}

void VoteMatrix::everything() {
  results();
  odd_bits();
  bytes();
  choice();
  refusals();
}

}  // namespace dmuon::testing
