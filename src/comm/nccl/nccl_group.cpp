#include "comm/nccl/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "comm/backoff.h"
#include "comm/expiry.h"
#include "dmuon/core/text.h"

namespace dmuon::nccl {
namespace {

constexpr size_t most_watched = 16;            // operations that a poll looks at
constexpr int64_t rounds_between_checks = 32;  // of polling for calls that are not taken yet
constexpr double goodbye_seconds = 5;

std::string counts_text(const std::vector<int64_t>& counts) {
  std::string result;
  for (int64_t count : counts) result += text(' ', count);
  return result;
}

int64_t count_at(const std::string& counts, int place) {
  std::istringstream in(counts);
  int64_t count = 0;
  for (int i = 0; i <= place; ++i) in >> count;
  return count;
}

// NCCL collects the calls of a thread between ncclGroupStart and ncclGroupEnd; left open, it would collect those of other
// communicators too.
class CallGroup {
 public:
  explicit CallGroup(ncclResult_t started) : open_(started == ncclSuccess) {}
  ~CallGroup() {
    if (open_) ncclGroupEnd();  // after an error, which is reported already
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;
  ncclResult_t end() {
    open_ = false;
    return ncclGroupEnd();
  }

 private:
  bool open_;
};

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Session> session, std::shared_ptr<Group> group)
    : session_(std::move(session)), group_(std::move(group)) {}

NcclGroup::~NcclGroup() {
  if (comm_ == nullptr) return;
  // What is still under way, and finalizing, wait for the peers, who may be gone.
  Deadline deadline(goodbye_seconds);
  const bool finished = !failed() && finish(deadline);
  ncclResult_t state = finished ? ncclCommFinalize(comm_) : ncclInternalError;
  while (state == ncclInProgress && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) state = ncclInternalError;
  }
  if (state == ncclSuccess)
    ncclCommDestroy(comm_);
  else if (finished)  // only saying goodbye takes too long
    ncclCommAbort(comm_);
  else
    session_->abort_all(*this, text("because group \"", group_->name(), "\" ended with operations that had not finished"));
}

bool NcclGroup::failed() const {
  try {
    group_->check();
    return false;
  } catch (const CommunicationError&) {
    return true;
  }
}

// Alone. Whether all operations ended in time and without an error.
bool NcclGroup::finish(Deadline& deadline) {
  for (;;) {
    retire();
    if (in_flight_.empty()) return true;
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)) return false;
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// ncclSuccess: NCCL has taken everything. ncclInProgress: it works on it. Else `problem` says what is wrong.
ncclResult_t NcclGroup::state(std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    problem = text("its NCCL communicator was aborted ", aborted_);
    return ncclInvalidUsage;
  }
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) problem = error_text(state);
  return state;
}

// Until NCCL has taken the calls of `operation`. It may wait for peers in them (who connect, or make room for more calls), so they
// are listened to, and the mutex is free for others who give up.
void NcclGroup::await_taken(const Operation& operation) {
  Deadline deadline(group_->deadline_seconds());
  std::string problem;
  int64_t round = 0;
  for (Backoff backoff; state(problem) == ncclInProgress; backoff.pause()) {
    if (++round % rounds_between_checks != 0) continue;
    group_->check();
    throw_if_another_gave_up(*group_);
    if (deadline.passed()) expire(*group_, operation, deadline.seconds(), others());
  }
  if (!problem.empty()) throw CommunicationError(text(place_of(operation), problem));
}

// "reduce ... of group "world" on rank 1 (host): "
std::string NcclGroup::place_of(const Operation& operation) const {
  return text(operation.describe(), " of group \"", group_->name(), "\" on ", group_->who(group_->rank()), ": ");
}

std::vector<std::string> NcclGroup::others() const {
  std::vector<std::string> names;
  for (int peer = 0; peer < group_->size(); ++peer)
    if (peer != group_->rank()) names.push_back(group_->who(peer));
  return names;
}

void NcclGroup::enter(Stream& stream, Operation operation, const std::function<void()>& body, const std::vector<int64_t>& send_counts,
                      const std::vector<int64_t>& receive_counts) {
  group_->check();
  operation.sequence = ++sequence_;
  if (!next_label_.empty()) operation.label = std::exchange(next_label_, {});
  if (std::this_thread::get_id() != session_->thread)
    throw CommunicationError(text(operation.describe(), " of group \"", group_->name(), "\" on ", group_->who(group_->rank()),
                                  " was entered by another thread than the one that made the device communicator; NCCL operations of "
                                  "a process need one order, so one thread enters them all"));
  if (session_->check_calls) compare_calls(operation, send_counts, receive_counts);
  InFlight entry{
      operation, stream.record(), {}, true, std::make_unique<Activity::Scope>(*group_->services().activity, operation, group_->name()), {}};
  std::vector<InFlight> finished;  // let go without the mutex
  {
    // Watched from its first call on: the body itself may wait for the device, for memory.
    const std::lock_guard lock(mutex_);
    finished = retire();
    current_ = operation;
    in_flight_.push_back(std::move(entry));
  }
  try {
    body();
    Event ended = stream.record();
    const std::lock_guard lock(mutex_);
    in_flight_.back().ended = std::move(ended);
    in_flight_.back().entering = false;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      finished.push_back(std::move(in_flight_.back()));
      in_flight_.pop_back();
    }
    give_up(operation);
    throw;
  }
}

// While an exception of an operation's body is handled. The other ranks wait for calls that will not come.
void NcclGroup::give_up(const Operation& operation) {
  std::string what = "an unknown exception";
  try {
    throw;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  try {
    fail(text(operation.describe(), " of group \"", group_->name(), "\" on ", group_->who(group_->rank()), ": ", what));
  } catch (const CommunicationError&) {
    // Told to the others, or known already; this rank says what happened.
  }
}

void NcclGroup::call(Stream& stream, const char* name, const std::vector<Tensor>& touched,
                     const std::function<void(ncclComm_t, cudaStream_t)>& calls) {
  const Operation operation = current_;
  std::string failure;
  backend().enqueue(stream, name, 0, touched, [&](cudaStream_t handle) {
    const std::lock_guard lock(mutex_);
    try {
      if (comm_ == nullptr) throw CommunicationError(text("its NCCL communicator was aborted ", aborted_));
      const ncclResult_t started = ncclGroupStart();
      CallGroup group(started);
      check(started);
      calls(comm_, handle);
      check(group.end());
    } catch (const CommunicationError& error) {
      failure = text(place_of(operation), error.what());
    }
  });
  try {
    if (failure.empty()) await_taken(operation);
  } catch (const CommunicationError& error) {
    failure = error.what();
  }
  if (!failure.empty()) fail(failure);
}

void NcclGroup::check(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) throw CommunicationError(error_text(result));
}

// Collective. Ranks that are about to enter something else learn it by name.
void NcclGroup::compare_calls(const Operation& operation, const std::vector<int64_t>& send_counts,
                              const std::vector<int64_t>& receive_counts) {
  Operation told = operation;
  told.label.clear();  // ranks need not agree on it
  const std::string mine = told.describe();
  const std::vector<std::string> all = control_->all_gather_text(text(mine, '\n', counts_text(send_counts)));
  for (int peer = 0; peer < group_->size(); ++peer) {
    const std::string& line = all[static_cast<size_t>(peer)];
    const std::string theirs = line.substr(0, line.find('\n'));
    if (theirs != mine)
      fail(text("ranks of group \"", group_->name(), "\" entered different collectives: ", group_->who(group_->rank()), " is in ", mine,
                ", ", group_->who(peer), " in ", theirs,
                "; every rank must enter the same collectives in the same order with matching arguments"));
    if (receive_counts.empty()) continue;
    const int64_t sent = count_at(line.substr(line.find('\n') + 1), group_->rank());
    const int64_t expected = receive_counts[static_cast<size_t>(peer)];
    if (sent != expected)
      fail(text(mine, " of group \"", group_->name(), "\": ", group_->who(peer), " sends ", sent, " elements to ",
                group_->who(group_->rank()), ", which expects ", expected,
                "; every rank must enter the same collectives in the same order with matching arguments"));
  }
}

// With mutex_ (or alone): forgets operations that have finished. The caller lets them go without the mutex: with them may go
// tensors, and with tensors a wait for the device.
std::vector<NcclGroup::InFlight> NcclGroup::retire() {
  std::vector<InFlight> finished;
  for (; !in_flight_.empty() && !in_flight_.front().entering && in_flight_.front().ended.done(); in_flight_.pop_front())
    finished.push_back(std::move(in_flight_.front()));
  return finished;
}

void NcclGroup::poll() {
  try {
    group_->check();
  } catch (const CommunicationError& error) {
    fail(error.what());  // a control operation's: what is under way on the device ends too
  }
  std::string failure;
  std::vector<InFlight> finished;
  Operation expired;
  double limit = 0;
  bool waiting = false;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw CommunicationError(text("group \"", group_->name(), "\" was aborted ", aborted_));
    finished = retire();
    waiting = !in_flight_.empty();
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress)
      failure =
          waiting ? text(place_of(in_flight_.front().operation), error_text(state))
                  : text("between operations of group \"", group_->name(), "\" on ", group_->who(group_->rank()), ": ", error_text(state));
    for (size_t i = 0; i < std::min(in_flight_.size(), most_watched) && limit == 0; ++i) {
      InFlight& entry = in_flight_[i];
      if (!entry.begun.done() || (!entry.entering && entry.ended.done())) continue;
      if (!entry.deadline) entry.deadline.emplace(group_->deadline_seconds());
      if (entry.deadline->passed()) expired = entry.operation, limit = entry.deadline->seconds();
    }
  }
  if (!failure.empty()) fail(failure);
  if (!waiting) return;
  try {
    throw_if_another_gave_up(*group_);
    if (limit == 0) return;
    expire(*group_, expired, limit, others());
  } catch (const CommunicationError& error) {
    fail(error.what());
  }
}

ncclComm_t NcclGroup::give_up_communicator(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return nullptr;
  aborted_ = why;
  return std::exchange(comm_, nullptr);
}

// Tells the other ranks first: aborting may take a while.
void NcclGroup::fail(const std::string& message) {
  std::string recorded;
  try {
    group_->fail(message);
  } catch (const CommunicationError& error) {
    recorded = error.what();
  }
  session_->abort_all(*this, text("after a failure of group \"", group_->name(), "\": ", recorded));
  throw CommunicationError(recorded);
}

std::string NcclGroup::error_text(ncclResult_t result) {
  const char* last = ncclGetLastError(comm_);
  std::string what = text("NCCL: ", ncclGetErrorString(result));
  if (last != nullptr && *last != '\0') what += text(" (", last, ')');
  if (result == ncclRemoteError) what += ": a peer is gone or failed; look at what the other ranks said first";
  return what;
}

}  // namespace dmuon::nccl
