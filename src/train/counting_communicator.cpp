#include "train/counting_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "dmuon/backend/backend.h"
#include "dmuon/core/error.h"

namespace dmuon {
namespace {

class CountingCommunicator final : public Communicator {
 public:
  // `members`: ranks of the job in this group, of which entry `rank` is this one.
  CountingCommunicator(const RunGrid& run, std::vector<int> members, int rank) : run_(run), members_(std::move(members)), rank_(rank) {}

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
  // Reduced and gathered in equal parts.
  void all_reduce(Stream&, const Tensor& data, ReduceOperation) override {
    to_each([&](int) { return 2 * data.bytes() / size(); });
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
    const int mine = members_[static_cast<size_t>(rank_)];
    const RankGrid& grid = run_.grid;
    std::vector<int> members;
    for (int each : members_)
      if (name.ends_with("in the node") ? grid.replica_of(each) == grid.replica_of(mine)
                                        : !name.ends_with("between nodes") || grid.shard_of(each) == grid.shard_of(mine))
        members.push_back(each);
    const auto rank = static_cast<int>(std::find(members.begin(), members.end(), mine) - members.begin());
    return std::make_unique<CountingCommunicator>(run_, std::move(members), rank);
  }
  std::unique_ptr<Communicator> divide_into_nodes(int, const std::string&) override {
    return std::make_unique<CountingCommunicator>(run_, members_, rank_);
  }
  void set_deadline(double) override {}
  TrafficBytes traffic() const override { return sent_; }
  [[noreturn]] void abort(ExitCode code) override { std::_Exit(static_cast<int>(code)); }

 private:
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
  TrafficBytes sent_;
};

}  // namespace

std::unique_ptr<Communicator> make_counting_communicator(int rank, const RunGrid& run) {
  std::vector<int> members(static_cast<size_t>(run.grid.ranks()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<CountingCommunicator>(run, std::move(members), rank);
}

}  // namespace dmuon
