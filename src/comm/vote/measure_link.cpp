// Latency and bandwidth as the all-gathers of all ranks at once show them.
#include <algorithm>
#include <chrono>

#include "comm/vote/transports.h"

namespace dmuon {
namespace {

constexpr int64_t smallest_words = 4096;              // 32 KiB
constexpr int64_t largest_words = int64_t{1} << 19;   // 4 MiB
constexpr int64_t largest_buffer = int64_t{8} << 20;  // words of all ranks together
constexpr double long_enough = 0.05;                  // seconds: bursts that a limited link lets pass do not count
constexpr int small_turns = 15, large_turns = 5;

class Measurement {
 public:
  Measurement(Communicator& group, Stream& stream, Tensor buffer) : group_(group), stream_(stream), buffer_(std::move(buffer)) {}

  // Median over turns of the slowest rank's seconds.
  double seconds(int64_t words, int turns) {
    const std::vector<int64_t> cuts = vote::equal_cuts(words, group_.size());
    const Tensor data = buffer_.flat(0, cuts.back());
    const auto once = [&] {
      group_.barrier(stream_);
      stream_.record().wait();
      const auto start = std::chrono::steady_clock::now();
      group_.all_gather_v(stream_, data, cuts);
      stream_.record().wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    once();  // connections and pages
    std::vector<double> mine;
    for (int turn = 0; turn < turns; ++turn) mine.push_back(once());
    std::vector<double> slowest = group_.all_reduce(mine, ReduceOperation::maximum);
    std::nth_element(slowest.begin(), slowest.begin() + turns / 2, slowest.end());
    return slowest[static_cast<size_t>(turns / 2)];
  }

 private:
  Communicator& group_;
  Stream& stream_;
  Tensor buffer_;
};

// The slowest rank's view, for all.
LinkCost agreed(Communicator& group, const LinkCost& link) {
  const double mine[] = {link.latency_seconds, link.seconds_per_byte};
  const std::vector<double> most = group.all_reduce(mine, ReduceOperation::maximum);
  return {most[0], most[1]};
}

}  // namespace

LinkCost measure_link(Backend& backend, Communicator& group, Stream& stream) {
  if (group.size() == 1 || backend.shape_only()) return {};
  const int64_t most = std::clamp(largest_buffer / group.size(), smallest_words, largest_words);
  const Tensor buffer = group.allocate(backend, {most * group.size()}, DType::int64, MemoryCategory::communication, "measured exchange");
  backend.zero(stream, buffer);
  Measurement measurement(group, stream, buffer);
  const double small = measurement.seconds(1, small_turns);
  int64_t words = smallest_words;
  while (words < most && measurement.seconds(words, 1) < long_enough) words = std::min(4 * words, most);
  const double large = measurement.seconds(words, large_turns);
  const double peers = group.size() - 1;
  return {small / peers, std::max(0.0, large - small) / (peers * 8 * static_cast<double>(words))};
}

VoteLinks measure_vote_links(Backend& backend, Communicator& group, Stream& stream) {
  const bool levels = vote::has_levels(vote_size(group, 0));
  return vote::measure_links(backend, group, levels ? vote::split_by_nodes(group) : vote::NodeGroups{}, stream);
}

VoteLinks vote::measure_links(Backend& backend, Communicator& group, const NodeGroups& groups, Stream& stream) {
  VoteLinks links;
  links.all = links.inside = links.between = measure_link(backend, group, stream);
  if (!groups.node) return links;
  links.inside = agreed(group, measure_link(backend, *groups.node, stream));
  links.between = agreed(group, measure_link(backend, *groups.column, stream));
  return links;
}

}  // namespace dmuon
