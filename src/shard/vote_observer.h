// What a step's votes looked like, for metrics: ties and agreement of a sample of signs, gathered packed from all workers, so
// that no transport has to count them; and of one matrix the operator norm of its votes and how far it moved.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "shard/unit_store.h"

namespace dmuon {

class VoteObserver {
 public:
  VoteObserver(ShardJob& job, UnitStore& store);

  // In this order, in an update that is observed, on every rank. `votes` by target. What is sampled follows from the step's
  // number, so that a resumed run goes on as an uninterrupted one.
  void begin(int64_t step);
  void take(const std::vector<size_t>& targets, const std::vector<SignVote>& votes);  // packed signs, before they are voted on
  void compare(const std::vector<SignVote>& votes);                                   // after the votes, before the update
  void finish();                                                                      // after the update
  const VoteReport& report() const { return report_; }
  // Of a job without transport: "".
  void set_transport(std::string_view transport, std::string_view choice) {
    report_.transport = transport;
    report_.choice = choice;
  }
  // Bytes that samples and their sums have taken.
  const TrafficBytes& sent() const { return sent_; }

 private:
  // Consecutive words of a piece.
  struct Part {
    size_t target = 0;
    int64_t first = 0, words = 0;  // in the piece
    int64_t at = 0;                // in the sample
  };
  const UpdateTarget* pick_matrix() const;
  void count(const std::vector<SignVote>& votes);
  // Runs a collective of one level, waits for it and counts what it sends; nothing else is under way in that group.
  void exchange(Level& level, const char* what, int64_t bytes, const std::function<void(Communicator&, Stream&)>& submit);
  double largest_change() const;
  void add_over_shards(std::array<double, 5>& sums);
  void measure_matrix(const std::vector<SignVote>& votes);

  ShardJob& job_;
  UnitStore& store_;
  int64_t quota_ = 0;          // words of a piece that are sampled
  std::vector<int> matrices_;  // parameters that lie in one piece, the same on every rank
  Tensor sample_, gathered_;   // int64: this worker's words, all workers'
  std::vector<Part> parts_;
  int64_t sampled_words_ = 0;
  uint64_t draw_ = 0;  // of this step, the same on every rank
  const UpdateTarget* matrix_ = nullptr;
  Tensor before_;  // the matrix
  TrafficBytes sent_;
  int64_t sent_before_ = 0;
  double tied_ = 0.0, agreeing_ = 0.0, sampled_ = 0.0, ratio_ = 0.0;
  double seconds_ = 0.0;  // that this update's observation took
  VoteReport report_;
};

}  // namespace dmuon
