#include "train/counting_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "comm/shared/shared_group.h"
#include "dmuon/backend/backend.h"
#include "dmuon/core/error.h"

namespace dmuon {
namespace {

class CountingCommunicator final : public Communicator {
 public:
  // `members`: ranks of the job in this group, of which entry `rank` is this one. `divided`: the group is a level of the grid.
  // `shared` (null: nobody asks) grows by what its ranks meet through while the group lives, never less.
  CountingCommunicator(const RunGrid& run, std::vector<int> members, int rank, bool divided, std::shared_ptr<int64_t> shared)
      : run_(run), members_(std::move(members)), rank_(rank), divided_(divided), shared_(std::move(shared)) {
    bool one_node = size() > 1;
    for (int each = 0; each < size(); ++each) one_node = one_node && node(each) == node(rank_);
    if (shared_ && one_node) *shared_ += SharedGroup::bytes_per_rank(size());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string host(int) const override { return "nowhere"; }
  int node(int rank) const override {
    return static_cast<int>(int64_t{members_[static_cast<size_t>(rank)]} * run_.nodes / run_.grid.ranks());
  }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override {
    return backend.allocate(shape, dtype, category, name);
  }
  void barrier(Stream&) override {}
  void broadcast(Stream&, const Tensor& data, int root) override {
    if (rank_ == root) to_each([&](int) { return data.bytes(); });
  }
  // Gathered whole where it is small (comm/collectives.h), else reduced and gathered in equal parts.
  void all_reduce(Stream&, const Tensor& data, ReduceOperation) override {
    constexpr int64_t small = int64_t{16} << 10;
    to_each([&](int) { return data.bytes() <= small ? data.bytes() : 2 * data.bytes() / size(); });
  }
  void all_gather_v(Stream&, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm) override {
    to_each([&](int) { return segment(cuts, rank_) * size_of(buffer.dtype()); });
  }
  void reduce_scatter_v(Stream&, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor&, bool) override {
    to_each([&](int peer) { return segment(cuts, peer) * size_of(buffer.dtype()); });
  }
  void all_to_all_v(Stream&, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor&, std::span<const int64_t>) override {
    to_each([&](int peer) { return segment(send_cuts, peer) * size_of(send.dtype()); });
  }
  std::vector<std::string> all_gather_text(const std::string& mine) override { return std::vector<std::string>(members_.size(), mine); }
  std::string broadcast_text(const std::string& mine, int) override { return mine; }
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation) override { return {values.begin(), values.end()}; }
  void agree(bool ok, const std::string& message, ExitCode code) override {
    if (!ok) throw Error(code, message);
  }
  std::unique_ptr<Communicator> split(int, int, const std::string& name) override {
    const bool inside = name.ends_with("in the node"), between = name.ends_with("between nodes");
    std::vector<int> members;
    for (int each = 0; each < size(); ++each)
      if ((!inside && !between) || (inside ? same_part(each) : same_place(each))) members.push_back(members_[static_cast<size_t>(each)]);
    const int mine = members_[static_cast<size_t>(rank_)];
    const auto rank = static_cast<int>(std::find(members.begin(), members.end(), mine) - members.begin());
    return std::make_unique<CountingCommunicator>(run_, std::move(members), rank, inside || between, shared_);
  }
  std::unique_ptr<Communicator> divide_into_nodes(int, const std::string&) override {
    return std::make_unique<CountingCommunicator>(run_, members_, rank_, divided_, nullptr);
  }
  void set_deadline(double) override {}
  TrafficBytes traffic() const override { return sent_; }
  [[noreturn]] void abort(ExitCode code) override { std::_Exit(static_cast<int>(code)); }

 private:
  // Of the job: ranks of one replica, and of one shard. Of a level, which a vote transport divides again: ranks of one node,
  // and those of the same place in their nodes.
  bool same_part(int rank) const {
    if (divided_) return node(rank) == node(rank_);
    return run_.grid.replica_of(members_[static_cast<size_t>(rank)]) == run_.grid.replica_of(members_[static_cast<size_t>(rank_)]);
  }
  bool same_place(int rank) const {
    if (divided_) return place(rank) == place(rank_);
    return run_.grid.shard_of(members_[static_cast<size_t>(rank)]) == run_.grid.shard_of(members_[static_cast<size_t>(rank_)]);
  }
  int place(int rank) const {
    int before = 0;
    for (int each = 0; each < rank; ++each) before += node(each) == node(rank);
    return before;
  }
  static int64_t segment(std::span<const int64_t> cuts, int rank) {
    return cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)];
  }
  template <class Bytes>
  void to_each(Bytes bytes) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank_) (node(peer) == node(rank_) ? sent_.inside : sent_.between) += bytes(peer);
  }

  RunGrid run_;
  std::vector<int> members_;
  int rank_;
  bool divided_;
  std::shared_ptr<int64_t> shared_;
  TrafficBytes sent_;
};

}  // namespace

std::unique_ptr<Communicator> make_counting_communicator(int rank, const RunGrid& run, std::shared_ptr<int64_t> shared) {
  std::vector<int> members(static_cast<size_t>(run.grid.ranks()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<CountingCommunicator>(run, std::move(members), rank, false, std::move(shared));
}

}  // namespace dmuon
