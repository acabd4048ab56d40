// Signs of a message, one bit an element: what the ranks of a vote exchange.
#pragma once

#include <cstdint>

namespace dmuon {

// The piece of a tensor that a vote is about: elements [first, first + count), counted over the whole tensor. Its row
// segments are the rows of `row_length` elements, divided further at multiples of `chunk` elements from the tensor's
// start, so that segments do not depend on how the tensor is cut.
struct SignSegments {
  int64_t first = 0, count = 0;
  int64_t row_length = 1;
  int64_t chunk = 16384;
};

}  // namespace dmuon
