#include "train/counting_communicator.h"

#include <cstdlib>

#include "dmuon/backend/backend.h"
#include "dmuon/core/error.h"

namespace dmuon {
namespace {

class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host(int) const override { return "nowhere"; }
  int node(int) const override { return 0; }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override {
    return backend.allocate(shape, dtype, category, name);
  }
  void barrier(Stream&) override {}
  void broadcast(Stream&, const Tensor& data, int root) override {
    if (rank_ == root) sent_ += data.bytes() * (size_ - 1);
  }
  void all_reduce(Stream&, const Tensor& data, ReduceOperation) override { sent_ += 2 * data.bytes() / size_ * (size_ - 1); }
  void all_gather_v(Stream&, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm) override {
    sent_ += segment(cuts, rank_) * size_of(buffer.dtype()) * (size_ - 1);
  }
  void reduce_scatter_v(Stream&, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor&, bool) override {
    sent_ += (cuts.back() - cuts.front() - segment(cuts, rank_)) * size_of(buffer.dtype());
  }
  void all_to_all_v(Stream&, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor&, std::span<const int64_t>) override {
    sent_ += (send_cuts.back() - send_cuts.front() - segment(send_cuts, rank_)) * size_of(send.dtype());
  }
  std::vector<std::string> all_gather_text(const std::string& mine) override {
    return std::vector<std::string>(static_cast<size_t>(size_), mine);
  }
  std::string broadcast_text(const std::string& mine, int) override { return mine; }
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation) override { return {values.begin(), values.end()}; }
  void agree(bool ok, const std::string& message, ExitCode code) override {
    if (!ok) throw Error(code, message);
  }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return make_counting_communicator(rank_, size_); }
  std::unique_ptr<Communicator> divide_into_nodes(int, const std::string&) override { return make_counting_communicator(rank_, size_); }
  void set_deadline(double) override {}
  TrafficBytes traffic() const override { return {sent_, 0}; }
  [[noreturn]] void abort(ExitCode code) override { std::_Exit(static_cast<int>(code)); }

 private:
  static int64_t segment(std::span<const int64_t> cuts, int rank) {
    return cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)];
  }
  int rank_, size_;
  int64_t sent_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_counting_communicator(int rank, int size) { return std::make_unique<CountingCommunicator>(rank, size); }

}  // namespace dmuon
