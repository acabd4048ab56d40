// What every group of one does alike, on a host and on a device: arguments are checked, nothing moves.
#pragma once

#include "comm/arguments.h"
#include "comm/reduction.h"
#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"

namespace dmuon {

class GroupOfOne : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int node(int) const override { return 0; }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) override {
    return backend.allocate(shape, dtype, category, name);
  }
  using Communicator::all_reduce;
  void barrier(Stream&) override {}
  void broadcast(Stream&, const Tensor&, int root) override { check_root("broadcast", root, 1); }
  void all_reduce(Stream&, const Tensor& data, ReduceOperation operation) override {
    check_reducible("all_reduce", data.dtype(), operation);
  }
  void all_gather_v(Stream&, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm) override {
    check_cuts("all_gather_v", cuts, 1, buffer.elements());
  }
};

}  // namespace dmuon
