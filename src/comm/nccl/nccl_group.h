// One NCCL communicator and what its ranks must know about it: how it is made, watched, and given up.
//
// It never blocks inside NCCL: the communicator is a non-blocking one, every call is followed up by polling. Operations are
// watched by whoever waits for the device (cuda::Supervisor): an asynchronous error, an operation that does not finish
// within its deadline, or another rank that gave up ends in ncclCommAbort for all groups of the process at once, which lets
// the streams run dry, and in CommunicationError from that wait and everything after it.
#pragma once

#include <nccl.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "comm/deadline.h"
#include "comm/group.h"
#include "comm/nccl/nccl_session.h"
#include "comm/operation.h"

namespace dmuon::nccl {

class NcclGroup final : public cuda::Supervisor, public std::enable_shared_from_this<NcclGroup> {
 public:
  // The ranks of `group`, more than one, whose control operations are `control`'s. Collective and blocking; every connection
  // is made and used once. CommunicationError on all ranks when one cannot.
  static std::shared_ptr<NcclGroup> make(std::shared_ptr<Session> session, Communicator& control, std::shared_ptr<Group> group);
  NcclGroup(std::shared_ptr<Session> session, std::shared_ptr<Group> group);
  ~NcclGroup() override;

  // Enters an operation: `body` queues it on the stream by call() and kernels. `counts`: what this rank sends to each rank and
  // expects of each, where ranks may differ. Whatever the body throws fails the group, so that no rank waits for the rest of
  // the operation, and is thrown on.
  void enter(Stream& stream, Operation operation, const std::function<void()>& body, const std::vector<int64_t>& send_counts = {},
             const std::vector<int64_t>& receive_counts = {});
  // Inside `body`: NCCL calls on the stream, grouped into one. `touched` as in CudaBackend::enqueue.
  void call(Stream& stream, const char* name, const std::vector<Tensor>& touched,
            const std::function<void(ncclComm_t, cudaStream_t)>& calls);
  // For the calls inside: a result that is no success is a failure of the group.
  void check(ncclResult_t result);

  Group& group() { return *group_; }
  cuda::CudaBackend& backend() { return session_->backend; }
  void describe_next(std::string what) { next_label_ = std::move(what); }

  void poll() override;
  // Its communicator for the caller to abort; null where it has none any more.
  ncclComm_t give_up_communicator(const std::string& why);

 private:
  struct InFlight {
    Operation operation;
    Event begun, ended;
    bool entering = true;  // its body has not returned; there is no `ended`
    std::unique_ptr<Activity::Scope> activity;
    std::optional<Deadline> deadline;  // since it was seen to have begun
  };

  void connect(Communicator& control);
  void warm_up();
  ncclResult_t state(std::string& problem);
  void await_created();
  void await_taken(const Operation& operation);
  std::string place_of(const Operation& operation) const;
  std::vector<std::string> others() const;
  void compare_calls(const Operation& operation, const std::vector<int64_t>& send_counts, const std::vector<int64_t>& receive_counts);
  std::vector<InFlight> retire();
  bool failed() const;
  bool finish(Deadline& deadline);
  void give_up(const Operation& operation);
  [[noreturn]] void fail(const std::string& message);
  std::string error_text(ncclResult_t result);

  std::shared_ptr<Session> session_;
  std::shared_ptr<Group> group_;
  Communicator* control_ = nullptr;
  int64_t sequence_ = 0;  // of device operations; control operations have their own numbers
  std::mutex mutex_;      // of everything below
  ncclComm_t comm_ = nullptr;
  std::string aborted_;  // why
  std::deque<InFlight> in_flight_;
  Operation current_;  // being entered
  std::string next_label_;
};

}  // namespace dmuon::nccl
