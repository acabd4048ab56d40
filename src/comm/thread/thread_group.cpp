#include "comm/thread/thread_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "comm/peer_communicator.h"
#include "comm/shared/shared_group.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// One end of a message. Guarded by the mutex of its hub.
struct End {
  char* data = nullptr;
  int64_t bytes = 0;
  std::vector<char> buffered;
  bool done = false;
  std::string error;
  int late = 0;
};

struct Mailbox {
  std::deque<std::shared_ptr<End>> sends;
  std::deque<std::shared_ptr<End>> receives;
};

struct Hub {
  Hub(int n, const ThreadGroupOptions& o)
      : ranks(n), options(o), random(o.seed * 0x9e3779b97f4a7c15ull + 1), notices(static_cast<size_t>(n)) {}

  const int ranks;
  const ThreadGroupOptions options;
  std::mutex mutex;
  uint64_t random;
  std::map<std::tuple<int, int, int>, Mailbox> mailboxes;  // (source, destination, tag)
  std::vector<std::deque<Notice>> notices;
  std::map<std::pair<int64_t, int>, std::shared_ptr<Hub>> subgroups;  // (sequence, first member)

  int draw(int limit) {  // in [0, limit]
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<int>(random % static_cast<uint64_t>(limit + 1));
  }
};

void deliver(const End& send, End& receive) {
  if (send.bytes != receive.bytes)
    receive.error = text("a message of ", send.bytes, " bytes came where ", receive.bytes, " were expected");
  else if (send.bytes > 0)
    std::memcpy(receive.data, send.buffered.empty() ? send.data : send.buffered.data(), static_cast<size_t>(send.bytes));
}

class ThreadRequest final : public MessageRequest {
 public:
  ThreadRequest(std::shared_ptr<Hub> hub, std::tuple<int, int, int> key, std::shared_ptr<End> end)
      : hub_(std::move(hub)), key_(key), end_(std::move(end)) {}
  ~ThreadRequest() override {
    std::lock_guard lock(hub_->mutex);
    if (end_->done) return;
    Mailbox& box = hub_->mailboxes[key_];
    std::erase(box.sends, end_);
    std::erase(box.receives, end_);
  }
  bool done() override {
    std::lock_guard lock(hub_->mutex);
    if (!end_->error.empty()) throw CommunicationError(end_->error);
    return end_->done && end_->late-- <= 0;
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::tuple<int, int, int> key_;
  std::shared_ptr<End> end_;
};

class ThreadPointToPoint final : public PointToPoint {
 public:
  ThreadPointToPoint(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_->ranks; }
  bool one_process() const override { return true; }

  std::unique_ptr<MessageRequest> send(const void* data, int64_t bytes, int peer, int tag) override {
    auto end = std::make_shared<End>();
    end->data = static_cast<char*>(const_cast<void*>(data));
    end->bytes = bytes;
    const std::tuple key{rank_, peer, tag};
    std::lock_guard lock(hub_->mutex);
    end->late = hub_->draw(hub_->options.late_polls);
    if (rank_ == hub_->options.silent_rank) return std::make_unique<ThreadRequest>(hub_, key, end);
    Mailbox& box = hub_->mailboxes[key];
    if (!box.receives.empty()) {
      deliver(*end, *box.receives.front());
      box.receives.front()->done = true;
      box.receives.pop_front();
      end->done = true;
    } else {
      if (bytes > 0 && bytes <= hub_->options.buffered_bytes) {
        auto copy = std::make_shared<End>();
        copy->bytes = bytes;
        copy->buffered.assign(end->data, end->data + bytes);
        box.sends.push_back(std::move(copy));
        end->done = true;
      } else {
        box.sends.push_back(end);
      }
    }
    return std::make_unique<ThreadRequest>(hub_, key, end);
  }

  std::unique_ptr<MessageRequest> receive(void* data, int64_t bytes, int peer, int tag) override {
    auto end = std::make_shared<End>();
    end->data = static_cast<char*>(data);
    end->bytes = bytes;
    const std::tuple key{peer, rank_, tag};
    std::lock_guard lock(hub_->mutex);
    end->late = hub_->draw(hub_->options.late_polls);
    Mailbox& box = hub_->mailboxes[key];
    if (!box.sends.empty()) {
      deliver(*box.sends.front(), *end);
      box.sends.front()->done = true;
      box.sends.pop_front();
      end->done = true;
    } else {
      box.receives.push_back(end);
    }
    return std::make_unique<ThreadRequest>(hub_, key, end);
  }

  void send_notice(const std::string& message) override {
    std::lock_guard lock(hub_->mutex);
    if (rank_ == hub_->options.silent_rank) return;
    for (int rank = 0; rank < hub_->ranks; ++rank)
      if (rank != rank_) hub_->notices[static_cast<size_t>(rank)].push_back({rank_, message});
  }

  std::optional<Notice> poll_notice() override {
    std::lock_guard lock(hub_->mutex);
    auto& queue = hub_->notices[static_cast<size_t>(rank_)];
    if (queue.empty()) return std::nullopt;
    Notice notice = std::move(queue.front());
    queue.pop_front();
    return notice;
  }

  std::shared_ptr<PointToPoint> subgroup(std::span<const int> members, int64_t sequence) override {
    std::lock_guard lock(hub_->mutex);
    ThreadGroupOptions options = hub_->options;
    options.silent_rank = -1;
    int mine = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank_) mine = static_cast<int>(i);
      if (members[i] == hub_->options.silent_rank) options.silent_rank = static_cast<int>(i);
    }
    auto& hub = hub_->subgroups[{sequence, members.front()}];
    if (!hub) hub = std::make_shared<Hub>(static_cast<int>(members.size()), options);
    return std::make_shared<ThreadPointToPoint>(hub, mine);
  }

  [[noreturn]] void abort(ExitCode code) override {
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(code));
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<PointToPoint>> make_thread_transports(int ranks, const ThreadGroupOptions& options) {
  auto hub = std::make_shared<Hub>(ranks, options);
  std::vector<std::shared_ptr<PointToPoint>> result;
  for (int rank = 0; rank < ranks; ++rank) result.push_back(std::make_shared<ThreadPointToPoint>(hub, rank));
  return result;
}

std::vector<std::unique_ptr<Communicator>> make_thread_group(int ranks, const ThreadGroupOptions& options) {
  const auto transports = make_thread_transports(ranks, options);
  std::vector<GroupMember> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back({rank, text("thread", rank), rank / std::max(options.ranks_per_node, 1)});
  const std::shared_ptr<Allocator> staging = make_host_allocator({.poison = true});
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& transport : transports)
    groups.push_back(std::make_shared<Group>("world", transport, members,
                                             GroupServices{staging, std::make_shared<Activity>(), options.shared_memory},
                                             options.deadline_seconds));
  if (options.shared_memory && ranks > 1 && members.back().node == 0) {
    const auto shared = std::make_shared<SharedGroup>(SharedSegment::create(SharedGroup::bytes_per_rank(ranks) * ranks), ranks);
    for (const auto& group : groups) group->set_shared(shared);
  }
  std::vector<std::unique_ptr<Communicator>> result;
  for (const auto& group : groups) result.push_back(std::make_unique<PeerCommunicator>(group));
  return result;
}

}  // namespace dmuon
