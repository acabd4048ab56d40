// Communicator over NCCL; see dmuon/comm/device_communicator.h.
#pragma once

#include <memory>
#include <string>

#include "comm/nccl/nccl_group.h"
#include "comm/peer_communicator.h"

namespace dmuon::nccl {

class NcclCommunicator final : public Communicator {
 public:
  // `control`: the same ranks over MPI, for everything but streams; kept where `owned` is it. Collective and blocking.
  NcclCommunicator(std::shared_ptr<Session> session, PeerCommunicator& control, std::unique_ptr<Communicator> owned);

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::string host(int rank) const override { return control_.host(rank); }
  int node(int rank) const override { return control_.node(rank); }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override;

  void barrier(Stream& stream) override;
  void broadcast(Stream& stream, const Tensor& data, int root) override;
  void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) override;
  void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) override;
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override;
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override;

  std::vector<std::string> all_gather_text(const std::string& mine) override { return control_.all_gather_text(mine); }
  std::string broadcast_text(const std::string& mine, int root) override { return control_.broadcast_text(mine, root); }
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation operation) override {
    return control_.all_reduce(values, operation);
  }
  void agree(bool ok, const std::string& message, ExitCode code) override { control_.agree(ok, message, code); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  std::unique_ptr<Communicator> divide_into_nodes(int nodes, const std::string& name) override;

  void describe_next(std::string what) override { nccl_->describe_next(std::move(what)); }
  void set_deadline(double seconds) override { control_.set_deadline(seconds); }
  TrafficBytes traffic() const override { return control_.traffic(); }
  [[noreturn]] void abort(ExitCode code) override;

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> control) const;
  // What the others will have received: bytes_to(rank) each.
  template <class Bytes>
  void count(Bytes bytes_to) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) group().count_sent(bytes_to(peer), peer);
  }
  Group& group() { return control_.group(); }

  std::shared_ptr<Session> session_;
  PeerCommunicator& control_;
  std::unique_ptr<Communicator> owned_;
  Tensor flag_;  // of barriers
  std::shared_ptr<NcclGroup> nccl_;
};

}  // namespace dmuon::nccl
