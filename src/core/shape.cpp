#include "dmuon/core/shape.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

Shape::Shape(std::span<const int64_t> sizes) {
  if (sizes.size() > static_cast<size_t>(maximum_rank))
    throw ShapeError(text("a tensor has at most ", maximum_rank, " dimensions, got ", sizes.size()));
  rank_ = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  int64_t product = 1;  // of the non-zero sizes, so that [0, huge, huge] is judged independently of the order
  bool empty = false;
  for (int64_t size : sizes) {
    if (size < 0) throw ShapeError(text("negative size in shape ", to_string()));
    if (size == 0) {
      empty = true;
      continue;
    }
    const auto next = checked_multiply(product, size);
    if (!next) throw ShapeError(text("element count of shape ", to_string(), " overflows 63 bits"));
    product = *next;
  }
  elements_ = empty ? 0 : product;
}

std::string Shape::to_string() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(sizes_[static_cast<size_t>(i)]);
  }
  return out + "]";
}

}  // namespace dmuon
