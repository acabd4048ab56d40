// The choice of `automatic`. The model knows the links alone, so transports that it cannot tell apart with certainty vote
// once or twice before one is chosen.
#include <algorithm>
#include <chrono>

#include "comm/vote/transports.h"

namespace dmuon::vote {
namespace {

// Measured are at most three, predicted within so many times of the best: counting, copies and dependent exchanges are not
// predicted. Slow votes are decided by the links, and measuring them would delay the start.
constexpr double similar = 8, quick_seconds = 0.05;
constexpr size_t most_measured = 3;
constexpr int turns = 5;

// Of the slowest rank, the median of several turns after one for connections and pages.
double measured_seconds(VoteTransport& transport, Communicator& all, Stream& stream, const Tensor& words) {
  std::vector<double> mine;
  for (int turn = 0; turn <= turns; ++turn) {
    all.barrier(stream);
    stream.record().wait();
    const auto start = std::chrono::steady_clock::now();
    transport.vote(stream, words, 0, turn);
    stream.record().wait();
    if (turn > 0) mine.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::vector<double> slowest = all.all_reduce(mine, ReduceOperation::maximum);
  std::nth_element(slowest.begin(), slowest.begin() + turns / 2, slowest.end());
  return slowest[turns / 2];
}

// The size that all groups decide by: the largest vote, and levels only where all have them.
VoteSize agreed(Communicator& all, const VoteSize& size) {
  const double mine[] = {static_cast<double>(size.words), static_cast<double>(size.nodes), -static_cast<double>(size.nodes)};
  const std::vector<double> most = all.all_reduce(mine, ReduceOperation::maximum);
  return {size.workers, most[1] == -most[2] ? size.nodes : 1, static_cast<int64_t>(most[0])};
}

VoteLinks agreed(Communicator& all, const VoteLinks& links) {
  const double mine[] = {links.all.latency_seconds,     links.all.seconds_per_byte,    links.inside.latency_seconds,
                         links.inside.seconds_per_byte, links.between.latency_seconds, links.between.seconds_per_byte};
  const std::vector<double> most = all.all_reduce(mine, ReduceOperation::maximum);
  return {{most[0], most[1]}, {most[2], most[3]}, {most[4], most[5]}};
}

}  // namespace

VoteChoice choose(Backend& backend, Communicator& group, Communicator& all, const NodeGroups& groups, const VoteSize& own_size) {
  Stream& stream = backend.compute_stream();
  const VoteSize size = agreed(all, own_size);
  const VoteLinks links = agreed(all, measure_links(backend, group, groups, stream));
  std::vector<VoteCandidate> candidates = vote_candidates(size, links);
  const double limit = std::min(similar * candidates[0].predicted_seconds, quick_seconds);
  const auto slow = std::find_if(candidates.begin(), candidates.end(), [&](const VoteCandidate& c) { return c.predicted_seconds > limit; });
  const size_t measured = std::min(static_cast<size_t>(slow - candidates.begin()), most_measured);
  if (measured > 1 && !backend.shape_only()) {
    const Tensor words = group.allocate(backend, {own_size.words}, DType::int64, MemoryCategory::communication, "measured votes");
    backend.zero(stream, words);
    for (size_t i = 0; i < measured; ++i) {
      const auto transport = make(backend, group, candidates[i].kind, groups, own_size.words, "");
      candidates[i].measured_seconds = measured_seconds(*transport, all, stream, words);
    }
  }
  return choose_vote_transport(size, links, std::move(candidates));
}

}  // namespace dmuon::vote
