// What the operations of one communicator share: its transport, names of ranks, deadline, sequence numbers, and, once
// something failed, the text with which every later operation fails. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/activity.h"
#include "comm/point_to_point.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/memory.h"

namespace dmuon {

class SharedGroup;

struct GroupServices {
  std::shared_ptr<Allocator> staging;  // memory of MemoryCategory::communication
  std::shared_ptr<Activity> activity;
  bool shared_memory = true;  // whether ranks of one host use it
  // Whether this process has said that it cannot.
  std::shared_ptr<std::atomic<bool>> shared_memory_warned = std::make_shared<std::atomic<bool>>(false);
};

struct GroupMember {
  int world_rank = 0;  // by which messages name it
  std::string host;    // likewise
  int node = 0;        // members of one node have equal numbers
};

class Group {
 public:
  // `members` by rank.
  Group(std::string name, std::shared_ptr<PointToPoint> transport, std::vector<GroupMember> members, GroupServices services,
        double deadline_seconds);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  const std::string& name() const { return name_; }
  // Nodes are numbered from 0 in the order of their lowest ranks.
  const GroupMember& member(int rank) const { return members_.at(static_cast<size_t>(rank)); }
  const std::string& host(int rank) const { return member(rank).host; }
  int node(int rank) const { return member(rank).node; }
  int world_rank(int rank) const { return member(rank).world_rank; }
  std::string who(int rank) const;  // "rank 2 (host)", the rank in the world
  void set_members(std::vector<GroupMember> members);

  PointToPoint& transport() { return *transport_; }
  // Null unless all ranks share a host and its memory. Set between two collectives: all later ones go through it.
  SharedGroup* shared() const { return shared_.get(); }
  void set_shared(std::shared_ptr<SharedGroup> shared) {
    shared_ = std::move(shared);
    shared_since_ = sequence_;
  }
  // The last collective before that.
  int64_t shared_since() const { return shared_since_; }
  const GroupServices& services() const { return services_; }

  // Numbers of collectives, and of groups split off; both from 1.
  int64_t next_sequence() { return ++sequence_; }
  int64_t next_subgroup() { return ++subgroups_; }
  double deadline_seconds() const { return deadline_seconds_; }
  void set_deadline(double seconds) { deadline_seconds_ = seconds; }
  void count_sent(int64_t bytes, int peer) { (node(peer) == node(rank()) ? bytes_inside_ : bytes_between_) += bytes; }
  TrafficBytes traffic() const { return {bytes_inside_, bytes_between_}; }

  // Throws the group's failure if there was one.
  void check() const;
  // Records the failure unless there was one before, tells the other ranks, and throws the recorded one.
  [[noreturn]] void fail(const std::string& message);
  // Keeps the memory of unfinished messages until the group goes.
  void keep(std::shared_ptr<void> unfinished);

 private:
  std::string name_;
  std::vector<GroupMember> members_;
  GroupServices services_;
  std::atomic<int64_t> sequence_{0};
  std::atomic<int64_t> subgroups_{0};
  std::atomic<int64_t> bytes_inside_{0};
  std::atomic<int64_t> bytes_between_{0};
  std::atomic<double> deadline_seconds_;
  mutable std::mutex mutex_;
  std::string failure_;
  std::shared_ptr<PointToPoint> transport_;
  std::shared_ptr<SharedGroup> shared_;
  int64_t shared_since_ = 0;
  std::vector<std::shared_ptr<void>> unfinished_;
};

}  // namespace dmuon
