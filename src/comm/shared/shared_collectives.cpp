#include "comm/shared/shared_collectives.h"

#include <algorithm>
#include <cstring>

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = SharedGroup::chunk_bytes;
constexpr int64_t small_all_reduce_bytes = int64_t{16} << 10;

void copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Segments of a buffer cut into rounds: round i moves the i-th portion of every segment, and all end in the same round.
struct Rounds {
  explicit Rounds(std::span<const int64_t> byte_cuts) : cuts(byte_cuts) {
    count = std::max<int64_t>(divide_up(cuts.back() - cuts.front(), chunk), 1);
    for (size_t r = 0; r + 1 < cuts.size(); ++r) {
      portions.push_back(round_up(divide_up(cuts[r + 1] - cuts[r], count), 64));
      places.push_back(r > 0 ? places.back() + portions[r - 1] : 0);
    }
  }
  int64_t first(int r, int64_t round) const {
    const size_t i = static_cast<size_t>(r);
    return std::min(cuts[i] + round * portions[i], cuts[i + 1]);
  }
  int64_t bytes(int r, int64_t round) const { return first(r, round + 1) - first(r, round); }

  std::span<const int64_t> cuts;
  int64_t count = 1;
  std::vector<int64_t> portions;  // bytes of a round, by segment
  std::vector<int64_t> places;    // of a segment's portion in the staging buffer
};

// Reduces `bytes` of every rank's memory at `source(rank)`.
template <class Source>
void reduce_all(const SharedExchange& exchange, const Reduction& reduction, int64_t bytes, Source source, char* result, bool accumulate,
                std::span<void* const> copies = {}) {
  std::vector<const void*> sources;
  for (int r = 0; r < exchange.size(); ++r) sources.push_back(source(r));
  reduce_in_order(reduction, sources, bytes / size_of(reduction.dtype), result, accumulate, copies);
}

// Ranks other than this one, each rank beginning with another.
template <class Do>
void for_each_peer(const SharedExchange& exchange, Do action) {
  for (int distance = 1; distance < exchange.size(); ++distance) action((exchange.rank() + distance) % exchange.size());
}

// Enters; true if the data lies in memory that all can reach and does not fit into one round.
bool enter_in_place(SharedExchange& exchange, const Tensor& tensor, int64_t rounds) {
  if (rounds == 1) return false;  // enters with its first round
  exchange.enter(tensor);
  exchange.wait_all(0);
  return exchange.in_place();
}

// The first round is there when the rank enters, unless it has entered before: then it is step 1.
void post_round(SharedExchange& exchange, int64_t rounds, int64_t step) {
  if (rounds == 1 && step == 0)
    exchange.enter();
  else
    exchange.post(step);
}

std::vector<int64_t> even_cuts(int64_t bytes, int ranks, int64_t element) {
  const int64_t share = round_up(divide_up(bytes / element, ranks), 64) * element;
  std::vector<int64_t> cuts;
  for (int r = 0; r <= ranks; ++r) cuts.push_back(std::min(bytes, r * share));
  return cuts;
}

void reduce_small(SharedExchange& exchange, DType dtype, ReduceOperation operation, char* data, int64_t bytes) {
  copy(exchange.input(exchange.rank(), 0), data, bytes);
  exchange.enter();
  exchange.wait_all(0);
  reduce_all(
      exchange, {dtype, dtype, operation}, bytes, [&](int r) { return exchange.input(r, 0); }, data, false);
  exchange.count_sent_to_each(bytes);
}

// Steps of a round of a staged all-reduce: 2i: copied in, 2i + 1: the own portion is reduced and copied out.
void all_reduce_in_rounds(SharedExchange& exchange, const Reduction& reduction, char* buffer, const Rounds& rounds) {
  const int me = exchange.rank();
  const int64_t base = rounds.count == 1 ? 0 : 1;
  const auto copy_in = [&](int64_t i) {
    for_each_peer(exchange, [&](int r) {
      copy(exchange.input(me, i) + rounds.places[static_cast<size_t>(r)], buffer + rounds.first(r, i), rounds.bytes(r, i));
    });
    post_round(exchange, rounds.count, base + 2 * i);
  };
  copy_in(0);
  for (int64_t i = 0; i < rounds.count; ++i) {
    exchange.wait_all(base + 2 * i);
    char* own = buffer + rounds.first(me, i);
    void* const output = exchange.output(me, i);
    const auto source = [&](int r) -> const char* { return r == me ? own : exchange.input(r, i) + rounds.places[static_cast<size_t>(me)]; };
    reduce_all(exchange, reduction, rounds.bytes(me, i), source, own, false, {&output, 1});
    exchange.post(base + 2 * i + 1);
    if (i + 1 < rounds.count) copy_in(i + 1);
    exchange.wait_all(base + 2 * i + 1);
    for_each_peer(exchange, [&](int r) { copy(buffer + rounds.first(r, i), exchange.output(r, i), rounds.bytes(r, i)); });
  }
}

void count_reduce_scatter(SharedExchange& exchange, std::span<const int64_t> cuts) {
  for_each_peer(exchange, [&](int r) { exchange.count_sent(cuts[static_cast<size_t>(r) + 1] - cuts[static_cast<size_t>(r)], r); });
}

void count_all_gather(SharedExchange& exchange, std::span<const int64_t> cuts) {
  const size_t me = static_cast<size_t>(exchange.rank());
  exchange.count_sent_to_each(cuts[me + 1] - cuts[me]);
}

}  // namespace

void shared_barrier(SharedExchange& exchange) {
  exchange.enter();
  exchange.wait_all(0);
}

bool shared_broadcast(SharedExchange& exchange, const Tensor& tensor, int root) {
  char* data = static_cast<char*>(tensor.raw());
  const int64_t bytes = tensor.bytes();
  const bool sends = exchange.rank() == root;
  if (bytes <= chunk) {
    if (sends) copy(exchange.input(root, 0), data, bytes);
    exchange.enter();
    exchange.wait_all(0);
    if (!sends) copy(data, exchange.input(root, 0), bytes);
  } else {
    exchange.enter(tensor);
    exchange.wait_all(0);
    if (!exchange.in_place()) return false;
    if (!sends) copy(data, exchange.data(root), bytes);
    exchange.post(1);
    if (sends) exchange.wait_all(1);
  }
  if (sends) exchange.count_sent_to_each(bytes);
  return true;
}

bool shared_all_gather_v(SharedExchange& exchange, const Tensor& tensor, std::span<const int64_t> cuts) {
  char* buffer = static_cast<char*>(tensor.raw());
  const int me = exchange.rank();
  const auto first = [&](int r) { return cuts[static_cast<size_t>(r)]; };
  const auto bytes = [&](int r) { return cuts[static_cast<size_t>(r) + 1] - cuts[static_cast<size_t>(r)]; };
  int64_t longest = 0;
  for (int r = 0; r < exchange.size(); ++r) longest = std::max(longest, bytes(r));
  if (longest <= chunk) {
    copy(exchange.input(me, 0), buffer + first(me), bytes(me));
    exchange.enter();
    exchange.wait_all(0);
    for_each_peer(exchange, [&](int r) { copy(buffer + first(r), exchange.input(r, 0), bytes(r)); });
  } else {
    exchange.enter(tensor);
    exchange.wait_all(0);
    if (!exchange.in_place()) return false;
    for_each_peer(exchange, [&](int r) { copy(buffer + first(r), exchange.data(r) + first(r), bytes(r)); });
    exchange.post(1);
    exchange.wait_all(1);
  }
  count_all_gather(exchange, cuts);
  return true;
}

void shared_reduce_scatter_v(SharedExchange& exchange, const Reduction& reduction, const Tensor& tensor, std::span<const int64_t> cuts,
                             char* result, bool accumulate) {
  char* buffer = static_cast<char*>(tensor.raw());
  const int me = exchange.rank();
  const int64_t own = cuts[static_cast<size_t>(me)];
  const Rounds rounds(cuts);
  count_reduce_scatter(exchange, cuts);
  if (enter_in_place(exchange, tensor, rounds.count)) {
    reduce_all(
        exchange, reduction, cuts[static_cast<size_t>(me) + 1] - own, [&](int r) { return exchange.data(r) + own; }, result, accumulate);
    exchange.post(1);
    return exchange.wait_all(1);
  }
  const int64_t base = rounds.count == 1 ? 0 : 1;
  const auto copy_in = [&](int64_t i) {
    for_each_peer(exchange, [&](int r) {
      copy(exchange.input(me, i) + rounds.places[static_cast<size_t>(r)], buffer + rounds.first(r, i), rounds.bytes(r, i));
    });
    post_round(exchange, rounds.count, base + i);
  };
  copy_in(0);
  for (int64_t i = 0; i < rounds.count; ++i) {
    exchange.wait_all(base + i);
    const int64_t first = rounds.first(me, i);
    const auto source = [&](int r) -> const char* {
      return r == me ? buffer + first : exchange.input(r, i) + rounds.places[static_cast<size_t>(me)];
    };
    char* target = result + (first - own) / size_of(reduction.dtype) * size_of(reduction.result);
    reduce_all(exchange, reduction, rounds.bytes(me, i), source, target, accumulate);
    if (i + 1 < rounds.count) copy_in(i + 1);
  }
}

void shared_all_reduce(SharedExchange& exchange, ReduceOperation operation, const Tensor& tensor) {
  char* data = static_cast<char*>(tensor.raw());
  const int64_t bytes = tensor.bytes();
  if (bytes <= small_all_reduce_bytes) return reduce_small(exchange, tensor.dtype(), operation, data, bytes);
  const Reduction reduction{tensor.dtype(), tensor.dtype(), operation};
  const std::vector<int64_t> cuts = even_cuts(bytes, exchange.size(), size_of(tensor.dtype()));
  const Rounds rounds(cuts);
  count_reduce_scatter(exchange, cuts);
  count_all_gather(exchange, cuts);
  if (!enter_in_place(exchange, tensor, rounds.count)) return all_reduce_in_rounds(exchange, reduction, data, rounds);
  const size_t me = static_cast<size_t>(exchange.rank());
  const int64_t first = cuts[me];
  std::vector<void*> others;
  for_each_peer(exchange, [&](int r) { others.push_back(exchange.data(r) + first); });
  reduce_all(
      exchange, reduction, cuts[me + 1] - first, [&](int r) { return exchange.data(r) + first; }, data + first, false, others);
  exchange.post(1);
  exchange.wait_all(1);
}

bool shared_all_reduce_values(SharedExchange& exchange, ReduceOperation operation, std::span<double> values) {
  const int64_t bytes = static_cast<int64_t>(values.size_bytes());
  if (bytes > chunk) {
    exchange.enter();
    return false;
  }
  reduce_small(exchange, DType::float64, operation, reinterpret_cast<char*>(values.data()), bytes);
  return true;
}

std::vector<std::string> shared_all_gather_text(SharedExchange& exchange, const std::string& mine) {
  const int me = exchange.rank();
  const int64_t bytes = static_cast<int64_t>(mine.size());
  copy(exchange.input(me, 0), mine.data(), std::min(bytes, chunk));
  exchange.enter({}, bytes);
  exchange.wait_all(0);
  std::vector<std::string> texts(static_cast<size_t>(exchange.size()));
  int64_t longest = 0;
  for (int r = 0; r < exchange.size(); ++r) {
    longest = std::max(longest, exchange.payload(r));
    texts[static_cast<size_t>(r)].resize(static_cast<size_t>(exchange.payload(r)));
  }
  for (int64_t i = 0; i == 0 || i * chunk < longest; ++i) {
    if (i > 0) exchange.wait_all(i);
    for (int r = 0; r < exchange.size(); ++r)
      copy(texts[static_cast<size_t>(r)].data() + i * chunk, exchange.input(r, i), std::min(chunk, exchange.payload(r) - i * chunk));
    if ((i + 1) * chunk >= longest) break;
    copy(exchange.input(me, i + 1), mine.data() + (i + 1) * chunk, std::min(chunk, bytes - (i + 1) * chunk));
    exchange.post(i + 1);
  }
  exchange.count_sent_to_each(bytes);
  return texts;
}

std::string shared_broadcast_text(SharedExchange& exchange, const std::string& mine, int root) {
  return shared_all_gather_text(exchange, exchange.rank() == root ? mine : "")[static_cast<size_t>(root)];
}

}  // namespace dmuon
