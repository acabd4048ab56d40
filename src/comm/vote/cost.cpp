#include <algorithm>
#include <bit>
#include <limits>

#include "dmuon/comm/vote_cost.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr std::string_view kind_names[] = {"auto", "int8_sum", "packed_gather", "packed_scatter", "hierarchical"};

// bytes = product of the factors.
int64_t bytes_of(std::initializer_list<int64_t> factors, const VoteSize& size) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    const auto next = checked_multiply(product, factor);
    if (!next) throw ConfigError(text("the bytes of a vote of ", size.workers, " workers on ", size.words, " words exceed 63 bits"));
    product = *next;
  }
  return product;
}

double share(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

// Seconds of `steps` exchanges that together send `bytes`.
double exchanges(int64_t steps, double bytes, const LinkCost& link) {
  return static_cast<double>(steps) * link.latency_seconds + bytes * link.seconds_per_byte;
}

}  // namespace

std::string vote_seconds_text(double seconds) {
  if (seconds < 1e-3) return text(format_number(seconds * 1e6, 0), " us");
  return seconds < 1 ? text(format_number(seconds * 1e3, 1), " ms") : text(format_number(seconds, 2), " s");
}

std::string link_text(const LinkCost& link) {
  const double rate = link.seconds_per_byte > 0 ? 1 / link.seconds_per_byte : std::numeric_limits<double>::infinity();
  return text(vote_seconds_text(link.latency_seconds), " and ",
              rate < 1e18 ? text(format_bytes(static_cast<int64_t>(rate)), "/s") : "no limit");
}

std::string_view name_of(VoteTransportKind kind) { return kind_names[static_cast<size_t>(kind)]; }

VoteTransportKind vote_transport_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kind_names); ++i)
    if (kind_names[i] == name) return static_cast<VoteTransportKind>(i);
  const std::string near = nearest(name, {std::begin(kind_names), std::end(kind_names)});
  throw ConfigError(text("distribution.vote_transport: \"", name,
                         "\" is none of auto, int8_sum, packed_gather, packed_scatter, hierarchical",
                         near.empty() ? "" : text("; did you mean \"", near, "\"?")));
}

DType vote_sum_dtype(int64_t workers) {
  const int64_t largest = workers % 2 == 0 ? workers + 1 : workers;
  return largest <= 127 ? DType::int8 : largest <= 32767 ? DType::int16 : DType::int32;
}

std::string vote_sum_note(int64_t workers) {
  const DType sum = vote_sum_dtype(workers);
  if (sum == DType::int8) return "";
  return text("int8_sum: the sum of ", workers, " workers does not fit into int8, so votes travel as ", name_of(sum), " with ",
              size_of(sum), " times the bytes; distribution.vote_transport = packed_scatter sends ", 8 * size_of(sum), " times less");
}

int vote_count_bits(int64_t workers, int64_t nodes) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(workers / nodes + (workers % 2 == 0 ? 1 : 0))));
}

VoteBytes vote_bytes(VoteTransportKind kind, const VoteSize& size) {
  const int64_t m = size.workers;
  const int64_t h = size.nodes;
  const int64_t g = m / h;
  if (m < 2) return {};
  if (kind == VoteTransportKind::hierarchical) {
    const int64_t between = bytes_of({h - 1, vote_count_bits(m, h) + 1, 8, size.words}, size);
    return {bytes_of({2, h, g - 1, 8, size.words}, size) + between, between};
  }
  const auto flat = [&](int64_t peers) {
    if (kind == VoteTransportKind::packed_gather) return bytes_of({m, peers, 8, size.words}, size);
    if (kind == VoteTransportKind::int8_sum) return bytes_of({2, peers, 64, size.words, size_of(vote_sum_dtype(m))}, size);
    return bytes_of({2, peers, 8, size.words}, size);
  };
  return {flat(m - 1), flat(m - g)};
}

double vote_bytes_per_worker(VoteTransportKind kind, const VoteSize& size) {
  const int64_t m = size.workers;
  if (m < 2) return 0;
  const double bytes = 8.0 * static_cast<double>(size.words);
  switch (kind) {
    case VoteTransportKind::int8_sum:
      return all_reduce_bytes_per_rank(m, 64 * size.words, size_of(vote_sum_dtype(m)));
    case VoteTransportKind::packed_gather:
      return static_cast<double>(m - 1) * bytes;
    case VoteTransportKind::hierarchical: {
      const int64_t h = size.nodes;
      const int64_t g = m / h;
      return 2 * share(g - 1, g) * bytes + share(h - 1, m) * (vote_count_bits(m, h) + 1) * bytes;
    }
    default:
      return 2 * share(m - 1, m) * bytes;
  }
}

double predicted_vote_seconds(VoteTransportKind kind, const VoteSize& size, const VoteLinks& links) {
  const int64_t m = size.workers;
  if (m < 2) return 0;
  const double bytes = vote_bytes_per_worker(kind, size);
  if (kind == VoteTransportKind::packed_gather) return exchanges(m - 1, bytes, links.all);
  if (kind != VoteTransportKind::hierarchical) return exchanges(2 * (m - 1), bytes, links.all);
  const int64_t h = size.nodes;
  const int64_t g = m / h;
  const double inside = 2 * share(g - 1, g) * 8 * static_cast<double>(size.words);
  return exchanges(2 * (g - 1), inside, links.inside) + exchanges(2 * (h - 1), bytes - inside, links.between);
}

double all_reduce_bytes_per_rank(int64_t workers, int64_t elements, int64_t element_bytes) {
  return workers < 2 ? 0 : 2 * share(workers - 1, workers) * static_cast<double>(elements) * static_cast<double>(element_bytes);
}

double predicted_all_reduce_seconds(int64_t workers, int64_t elements, int64_t element_bytes, const LinkCost& link) {
  return exchanges(2 * std::max<int64_t>(workers - 1, 0), all_reduce_bytes_per_rank(workers, elements, element_bytes), link);
}

double votes_where_scatter_pays(int64_t workers, const LinkCost& link) {
  if (workers < 3 || link.seconds_per_byte <= 0) return std::numeric_limits<double>::infinity();
  return 8.0 * static_cast<double>(workers) * link.latency_seconds / (link.seconds_per_byte * static_cast<double>(workers - 2));
}

std::vector<VoteTransportKind> possible_vote_transports(const VoteSize& size) {
  using enum VoteTransportKind;
  std::vector<VoteTransportKind> kinds{int8_sum, packed_gather, packed_scatter};
  if (size.nodes > 1 && size.workers % size.nodes == 0) kinds.push_back(hierarchical);
  return kinds;
}

std::vector<VoteCandidate> vote_candidates(const VoteSize& size, const VoteLinks& links) {
  std::vector<VoteCandidate> candidates;
  for (const VoteTransportKind kind : possible_vote_transports(size)) {
    if (kind == VoteTransportKind::hierarchical && size.workers == size.nodes) continue;
    candidates.push_back({kind, predicted_vote_seconds(kind, size, links)});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](const VoteCandidate& a, const VoteCandidate& b) {
    if (a.predicted_seconds != b.predicted_seconds) return a.predicted_seconds < b.predicted_seconds;
    return vote_bytes_per_worker(a.kind, size) < vote_bytes_per_worker(b.kind, size);
  });
  return candidates;
}

VoteChoice choose_vote_transport(const VoteSize& size, const VoteLinks& links, std::vector<VoteCandidate> candidates) {
  const auto measured = [](const VoteCandidate& c) { return c.measured_seconds > 0; };
  std::stable_sort(candidates.begin(), candidates.end(), [&](const VoteCandidate& a, const VoteCandidate& b) {
    if (measured(a) != measured(b)) return measured(a);
    return measured(a) ? a.measured_seconds < b.measured_seconds : a.predicted_seconds < b.predicted_seconds;
  });
  const auto seconds = [&](const VoteCandidate& c) {
    const std::string predicted = text(vote_seconds_text(c.predicted_seconds), " predicted");
    return measured(c) ? text(vote_seconds_text(c.measured_seconds), " measured, ", predicted) : predicted;
  };
  std::vector<std::string> others;
  for (size_t i = 1; i < candidates.size(); ++i) others.push_back(text(name_of(candidates[i].kind), " ", seconds(candidates[i])));
  const VoteCandidate& best = candidates.front();
  std::string reason = text(name_of(best.kind), ": ", seconds(best), " (", join(others, "; "), ") for ", size.workers, " workers, ",
                            format_count(64 * size.words), " votes, ", link_text(links.all));
  if (candidates.size() > 3) reason += text(" (inside a node ", link_text(links.inside), ", between nodes ", link_text(links.between), ")");
  return {best.kind, std::move(reason)};
}

VoteChoice choose_vote_transport(const VoteSize& size, const VoteLinks& links) {
  return choose_vote_transport(size, links, vote_candidates(size, links));
}

}  // namespace dmuon
