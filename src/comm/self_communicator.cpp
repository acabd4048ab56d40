// A group of one. Data moves only where the contract of an operation says so: reduce_scatter_v into another tensor
// and all_to_all_v.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/group_of_one.h"
#include "comm/reduction.h"
#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// Keeps the tensors accessible while it lives.
struct Access {
  explicit Access(const Tensor& first, const Tensor& second) : tensors{first, second} {
    for (const Tensor& tensor : tensors) tensor.storage()->open();
  }
  ~Access() {
    for (const Tensor& tensor : tensors) tensor.storage()->close();
  }
  Tensor tensors[2];
};

class SelfCommunicator final : public GroupOfOne {
 public:
  std::string host(int) const override { return host_name(); }
  void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                        bool accumulate) override {
    check_reduce_scatter(buffer, cuts, result, 0, 1);
    check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
    const Tensor own = buffer.flat().flat(cuts[0], cuts[1] - cuts[0]);
    if (own.elements() == 0 || own.raw() == nullptr || (own.raw() == result.raw() && !accumulate)) return;
    stream.submit([own, result, accumulate] {
      const Access access(own, result);
      const void* source = own.raw();
      reduce_in_order({own.dtype(), result.dtype(), ReduceOperation::sum}, {&source, 1}, own.elements(), result.raw(), accumulate);
    });
  }
  void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                    std::span<const int64_t> receive_cuts) override {
    check_all_to_all(send, send_cuts, receive, receive_cuts, 0, 1);
    const Tensor from = send.flat().flat(send_cuts[0], send_cuts[1] - send_cuts[0]);
    const Tensor to = receive.flat().flat(receive_cuts[0], from.elements());
    if (from.elements() == 0 || from.raw() == nullptr) return;
    stream.submit([from, to] {
      const Access access(from, to);
      std::memmove(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
    });
  }

  std::vector<std::string> all_gather_text(const std::string& mine) override { return {mine}; }
  std::string broadcast_text(const std::string& mine, int root) override {
    check_root("broadcast_text", root, 1);
    return mine;
  }
  std::vector<double> all_reduce(std::span<const double> values, ReduceOperation) override { return {values.begin(), values.end()}; }
  // Alone, there is no other rank to tell apart: the text stays as it is.
  void agree(bool ok, const std::string& message, ExitCode code) override {
    if (!ok) throw Error(code, message);
  }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return make_self_communicator(); }
  std::unique_ptr<Communicator> divide_into_nodes(int nodes, const std::string&) override {
    check_nodes(nodes, 1);
    return make_self_communicator();
  }

  void set_deadline(double) override {}
  TrafficBytes traffic() const override { return {}; }
  [[noreturn]] void abort(ExitCode code) override {
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(code));
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace dmuon
