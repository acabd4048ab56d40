#include "comm/arguments.h"

#include "dmuon/core/text.h"

namespace dmuon {

void check_cuts(const char* operation, std::span<const int64_t> cuts, int ranks, int64_t elements) {
  if (cuts.size() != static_cast<size_t>(ranks) + 1)
    throw ShapeError(text(operation, ": ", cuts.size(), " cuts for ", ranks, " ranks; expected one more than ranks"));
  int64_t previous = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i] < previous || cuts[i] > elements)
      throw ShapeError(text(operation, ": cut ", i, " is ", cuts[i], "; cuts ascend from 0 to at most the ", elements,
                            " elements of the buffer, and the one before is ", previous));
    previous = cuts[i];
  }
}

void check_nodes(int nodes, int ranks) {
  if (nodes < 1 || ranks % nodes != 0)
    throw ConfigError(text(nodes, " nodes do not divide ", ranks, " ranks; choose a divisor of the number of ranks"));
}

void check_root(const char* operation, int root, int ranks) {
  if (root < 0 || root >= ranks) throw ShapeError(text(operation, ": root ", root, " is none of the ", ranks, " ranks"));
}

void check_reduce_scatter(const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result, int rank, int ranks) {
  check_cuts("reduce_scatter_v", cuts, ranks, buffer.elements());
  const int64_t own = cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)];
  const bool widened = buffer.dtype() == DType::bfloat16 && result.dtype() == DType::float32;
  if ((result.dtype() != buffer.dtype() && !widened) || result.elements() != own)
    throw ShapeError(text("reduce_scatter_v: result ", result.to_string(), " for the ", own, " elements of rank ", rank, " in buffer ",
                          buffer.to_string(), "; the dtypes are equal, or float32 for bfloat16"));
}

void check_all_to_all(const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive, std::span<const int64_t> receive_cuts,
                      int rank, int ranks) {
  check_cuts("all_to_all_v (send)", send_cuts, ranks, send.elements());
  check_cuts("all_to_all_v (receive)", receive_cuts, ranks, receive.elements());
  if (send.dtype() != receive.dtype())
    throw ShapeError(text("all_to_all_v: send ", send.to_string(), " and receive ", receive.to_string(), " differ in dtype"));
  const size_t r = static_cast<size_t>(rank);
  if (send_cuts[r + 1] - send_cuts[r] != receive_cuts[r + 1] - receive_cuts[r])
    throw ShapeError(text("all_to_all_v: rank ", rank, " sends itself ", send_cuts[r + 1] - send_cuts[r], " elements and expects ",
                          receive_cuts[r + 1] - receive_cuts[r]));
}

std::vector<int64_t> cuts_in_bytes(std::span<const int64_t> cuts, DType dtype) {
  std::vector<int64_t> result;
  for (int64_t cut : cuts) result.push_back(cut * size_of(dtype));
  return result;
}

}  // namespace dmuon
