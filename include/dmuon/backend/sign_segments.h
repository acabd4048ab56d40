// The segments of a tensor of a given shape, the same for every part of a run that packs, lays out or counts votes.
#pragma once

#include "dmuon/backend/signs.h"
#include "dmuon/core/shape.h"

namespace dmuon {

// Elements [first, first + count) of a tensor of this shape, seen as [rows, columns]: the first dimension counts rows, so that a
// convolution's weight [out, in, k, k] is the matrix [out, in * k * k]; a tensor of one dimension or none is one row. A row has
// at least one element, in empty tensors too.
SignSegments sign_segments(const Shape& shape, int64_t first, int64_t count, int64_t chunk);

}  // namespace dmuon
