// One collective of one rank in shared memory: entering, steps, waiting for the other ranks, and leaving. Waiting polls
// with back-off; it ends with a CommunicationError at the deadline, when another rank gave up, or when a rank turns out
// to be in another collective.
#pragma once

#include <vector>

#include "comm/deadline.h"
#include "comm/group.h"
#include "comm/shared/shared_group.h"

namespace dmuon {

class SharedExchange {
 public:
  // Waits until the slot is free. The tensors stay accessible while this lives.
  SharedExchange(Group& group, const Operation& operation, std::vector<Tensor> tensors);
  ~SharedExchange();
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // Step 0: tells the others that this rank is here and, if given, where its data lies and a number for them.
  void enter(const Tensor& data = {}, int64_t payload = 0);
  void post(int64_t step);  // ascending from 1
  // Returns when every rank, or one, has posted `step` or a later one: what they wrote before is visible.
  void wait_all(int64_t step);
  void wait_for(int rank, int64_t step);
  // The staging may still be read by others, private memory may not.
  void leave();

  // After wait_all: whether the data of all ranks lies in one segment, and where.
  bool in_place() const;
  char* data(int rank) const;
  int64_t payload(int rank) const;

  char* input(int rank, int64_t buffer) const { return shared_.input(operation_.sequence, rank, buffer); }
  char* output(int rank, int64_t buffer) const { return shared_.output(operation_.sequence, rank, buffer); }

  // Counts bytes that every other rank reads from this one.
  void count_sent_to_each(int64_t bytes);
  void count_sent(int64_t bytes, int peer) { group_.count_sent(bytes, peer); }

 private:
  bool reached(int rank, int64_t step);
  void check_greeting(int rank);
  template <class FirstMissing>
  void wait(FirstMissing first_missing, const char* why);

  Group& group_;
  SharedGroup& shared_;
  Operation operation_;
  std::vector<Tensor> tensors_;
  std::vector<bool> met_;
  Deadline deadline_;
  Activity::Scope scope_;
  const SharedSegment* segment_ = nullptr;  // that holds this rank's data
};

}  // namespace dmuon
