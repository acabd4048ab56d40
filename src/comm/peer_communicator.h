// The communicator of more than one process (or thread, in tests): our own collectives over a point-to-point
// transport or, where all ranks share a host, through shared memory. Operations run as work of the given stream; see
// exchange.h and shared/shared_exchange.h for how they wait, expire and detect ranks that entered something else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/operation.h"
#include "dmuon/comm/communicator.h"

namespace dmuon {

class Exchange;
class SharedExchange;

class PeerCommunicator final : public Communicator {
 public:
  explicit PeerCommunicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string host(int rank) const override { return group_->host(rank); }
  int node(int rank) const override { return group_->node(rank); }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override;

  void barrier(Stream& stream) override;
  void broadcast(Stream& stream, const Tensor& data, int root) override;
  void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) override;
  void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) override;
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override;
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override;

  std::vector<std::string> all_gather_text(const std::string& mine) override;
  std::string broadcast_text(const std::string& mine, int root) override;
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation operation) override;
  void agree(bool ok, const std::string& message, ExitCode code) override;
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  std::unique_ptr<Communicator> divide_into_nodes(int nodes, const std::string& name) override;

  void describe_next(std::string what) override { next_label_ = std::move(what); }
  void set_deadline(double seconds) override { group_->set_deadline(seconds); }
  TrafficBytes traffic() const override { return group_->traffic(); }
  [[noreturn]] void abort(ExitCode code) override;

  Group& group() { return *group_; }
  const std::shared_ptr<Group>& shared_group() const { return group_; }

 private:
  // One rank's part, over messages and through shared memory.
  struct Body {
    std::function<void(Exchange&)> messages;
    std::function<bool(SharedExchange&)> shared;  // false, on every rank, or none: by messages after all
  };
  static void perform(Group& group, const Operation& operation, const std::vector<Tensor>& tensors, const Body& body);
  // Numbers the operation now and runs `body` on the stream.
  void submit(Stream& stream, Operation operation, std::vector<Tensor> tensors, Body body);
  // Numbers the operation and runs `body` now.
  void run(Operation operation, const Body& body);
  std::vector<std::string> gather_text(const Operation& operation, const std::string& mine);
  // The group of `ranks`, on the nodes where they are, or counting as `blocks` nodes of equally many.
  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks, const std::string& name, int blocks = 0);
  Operation entered(Operation operation);  // numbered and described

  std::shared_ptr<Group> group_;
  std::string next_label_;                    // of the next operation
  std::unique_ptr<Communicator> node_group_;  // of the ranks on this node, made by the first allocate() that needs it
};

}  // namespace dmuon
