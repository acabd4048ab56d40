// A network of no cost, for measuring exposed communication.
#include <cstdlib>

#include "comm/arguments.h"
#include "comm/reduction.h"
#include "dmuon/comm/communicator.h"

namespace dmuon {
namespace {

class NullCommunicator final : public Communicator {
 public:
  using Silent = std::shared_ptr<const std::atomic<bool>>;
  NullCommunicator(Communicator& like, std::unique_ptr<Communicator> owned, Silent silent)
      : like_(like), owned_(std::move(owned)), silent_(std::move(silent)) {}

  int rank() const override { return like_.rank(); }
  int size() const override { return like_.size(); }
  std::string host(int rank) const override { return like_.host(rank); }
  int node(int rank) const override { return like_.node(rank); }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override {
    return like_.allocate(backend, shape, dtype, category, name);
  }

  void barrier(Stream& stream) override {
    if (!silent()) like_.barrier(stream);
  }
  void broadcast(Stream& stream, const Tensor& data, int root) override {
    check_root("broadcast", root, size());
    if (!silent()) like_.broadcast(stream, data, root);
  }
  void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) override {
    check_reducible("all_reduce", data.dtype(), operation);
    if (!silent()) like_.all_reduce(stream, data, operation);
  }
  void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) override {
    check_cuts("all_gather_v", cuts, size(), buffer.elements());
    if (!silent()) like_.all_gather_v(stream, buffer, cuts, form);
  }
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override {
    check_reduce_scatter(buffer, cuts, result, rank(), size());
    check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
    if (!silent()) like_.reduce_scatter_v(stream, buffer, cuts, result, accumulate);
  }
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override {
    check_all_to_all(send, send_cuts, receive, receive_cuts, rank(), size());
    if (!silent()) like_.all_to_all_v(stream, send, send_cuts, receive, receive_cuts);
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

  void describe_next(std::string what) override { like_.describe_next(std::move(what)); }
  void set_deadline(double seconds) override { like_.set_deadline(seconds); }
  TrafficBytes traffic() const override { return like_.traffic(); }
  [[noreturn]] void abort(ExitCode code) override {
    like_.abort(code);
    std::_Exit(static_cast<int>(code));  // not reached; the compiler does not trust virtual functions to not return
  }

 private:
  bool silent() const { return !silent_ || *silent_; }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) const {
    Communicator& like = *group;
    return std::make_unique<NullCommunicator>(like, std::move(group), silent_);
  }

  Communicator& like_;
  std::unique_ptr<Communicator> owned_;  // `like_`, where this group was split off
  Silent silent_;
};

}  // namespace

std::unique_ptr<Communicator> make_null_communicator(Communicator& like, std::shared_ptr<const std::atomic<bool>> silent) {
  return std::make_unique<NullCommunicator>(like, nullptr, std::move(silent));
}

}  // namespace dmuon
