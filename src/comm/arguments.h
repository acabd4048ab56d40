// Checks of arguments that every communicator shares. They throw ShapeError naming the operation, unless said.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dmuon/comm/communicator.h"

namespace dmuon {

// `cuts` has ranks + 1 ascending entries inside [0, elements].
void check_cuts(const char* operation, std::span<const int64_t> cuts, int ranks, int64_t elements);
// ConfigError unless `nodes` equal blocks of ranks are possible.
void check_nodes(int nodes, int ranks);
void check_root(const char* operation, int root, int ranks);
void check_reduce_scatter(const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result, int rank, int ranks);
void check_all_to_all(const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive, std::span<const int64_t> receive_cuts,
                      int rank, int ranks);

std::vector<int64_t> cuts_in_bytes(std::span<const int64_t> cuts, DType dtype);

}  // namespace dmuon
