// A communicator whose collectives start late, each by a time of its own: what does not wait for an event reads old values.
// For worker streams, whose order the deferred test double does not shuffle.
#pragma once

#include <chrono>
#include <thread>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/random.h"

namespace dmuon::testing {

class DelayedCommunicator final : public Communicator {
 public:
  DelayedCommunicator(Communicator& like, uint64_t seed, std::unique_ptr<Communicator> owned = nullptr)
      : like_(like), owned_(std::move(owned)), random_(seed, RandomStream::test) {}

  int rank() const override { return like_.rank(); }
  int size() const override { return like_.size(); }
  std::string host(int rank) const override { return like_.host(rank); }
  int node(int rank) const override { return like_.node(rank); }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override {
    return like_.allocate(backend, shape, dtype, category, name);
  }
  void barrier(Stream& stream) override { delay(stream), like_.barrier(stream); }
  void broadcast(Stream& stream, const Tensor& data, int root) override { delay(stream), like_.broadcast(stream, data, root); }
  void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) override {
    delay(stream), like_.all_reduce(stream, data, operation);
  }
  void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) override {
    delay(stream), like_.all_gather_v(stream, buffer, cuts, form);
  }
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override {
    delay(stream), like_.reduce_scatter_v(stream, buffer, cuts, result, accumulate);
  }
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override {
    delay(stream), like_.all_to_all_v(stream, send, send_cuts, receive, receive_cuts);
  }
  std::vector<std::string> all_gather_text(const std::string& mine) override { return like_.all_gather_text(mine); }
  std::string broadcast_text(const std::string& mine, int root) override { return like_.broadcast_text(mine, root); }
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation operation) override {
    return like_.all_reduce(values, operation);
  }
  void agree(bool ok, const std::string& message, ExitCode code) override { like_.agree(ok, message, code); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override { return wrap(like_.split(color, key, name)); }
  std::unique_ptr<Communicator> divide_into_nodes(int nodes, const std::string& name) override {
    return wrap(like_.divide_into_nodes(nodes, name));
  }
  void set_deadline(double seconds) override { like_.set_deadline(seconds); }
  TrafficBytes traffic() const override { return like_.traffic(); }
  [[noreturn]] void abort(ExitCode code) override {
    like_.abort(code);
    std::terminate();
  }

 private:
  // Up to 2 ms, and often none.
  void delay(Stream& stream) {
    const uint64_t microseconds = random_.below(3, count_) == 0 ? 0 : random_.below(2000, count_, 1);
    ++count_;
    stream.submit([microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) {
    Communicator& like = *group;
    return std::make_unique<DelayedCommunicator>(like, mix64(++count_ + static_cast<uint64_t>(rank())), std::move(group));
  }

  Communicator& like_;
  std::unique_ptr<Communicator> owned_;  // `like_`, where this group was split off
  Random random_;
  uint64_t count_ = 0;
};

}  // namespace dmuon::testing
