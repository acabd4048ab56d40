#include "autograd/operations/common.h"

namespace dmuon {

void check_tokens(std::span<const int32_t> indices, int64_t size, std::string_view what) {
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || indices[i] >= size)
      throw DataError(text(what, ": index ", indices[i], " at position ", i, " is outside [0, ", size, ")"));
}

}  // namespace dmuon
