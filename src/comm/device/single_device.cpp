#include "comm/device/single_device.h"

#include <cstdlib>
#include <vector>

#include "comm/group_of_one.h"
#include "comm/reduction.h"
#include "dmuon/backend/backend.h"

namespace dmuon {
namespace {

class SingleDevice final : public GroupOfOne {
 public:
  SingleDevice(Backend& backend, Communicator& like, std::unique_ptr<Communicator> owned)
      : backend_(backend), like_(like), owned_(std::move(owned)) {}

  std::string host(int) const override { return like_.host(0); }
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override {
    check_reduce_scatter(buffer, cuts, result, 0, 1);
    check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
    const Tensor own = buffer.flat().flat(cuts[0], cuts[1] - cuts[0]);
    if (own.elements() == 0 || (own.raw() == result.raw() && !accumulate)) return;
    if (!accumulate) return backend_.copy(stream, own, result);
    if (own.dtype() != DType::float32) return add_on_host(stream, own, result);
    ScaledAdd add;
    add.x = own, add.y = result.flat(), add.alpha = 1.0, add.accumulate = true;
    backend_.activation().scaled_add(stream, add);
  }
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override {
    check_all_to_all(send, send_cuts, receive, receive_cuts, 0, 1);
    const Tensor from = send.flat().flat(send_cuts[0], send_cuts[1] - send_cuts[0]);
    const Tensor to = receive.flat().flat(receive_cuts[0], from.elements());
    if (from.elements() > 0 && from.raw() != to.raw()) backend_.copy(stream, from, to);
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
  void set_deadline(double) override {}
  TrafficBytes traffic() const override { return {}; }
  [[noreturn]] void abort(ExitCode code) override {
    like_.abort(code);
    std::_Exit(static_cast<int>(code));  // not reached; the compiler does not trust virtual functions to not return
  }

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) const {
    Communicator& like = *group;
    return std::make_unique<SingleDevice>(backend_, like, std::move(group));
  }

  // Types that no training adds in a group of one; blocks.
  void add_on_host(Stream& stream, const Tensor& own, const Tensor& result) {
    std::vector<char> terms(static_cast<size_t>(own.bytes())), sum(static_cast<size_t>(result.bytes()));
    backend_.copy_to_host(stream, own, terms.data());
    backend_.copy_to_host(stream, result, sum.data());
    const void* source = terms.data();
    reduce_in_order({own.dtype(), result.dtype(), ReduceOperation::sum}, {&source, 1}, own.elements(), sum.data(), true);
    backend_.copy_from_host(stream, sum.data(), result);
  }

  Backend& backend_;
  Communicator& like_;
  std::unique_ptr<Communicator> owned_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_device_communicator(Backend& backend, Communicator& like, std::unique_ptr<Communicator> owned) {
  return std::make_unique<SingleDevice>(backend, like, std::move(owned));
}

}  // namespace dmuon
