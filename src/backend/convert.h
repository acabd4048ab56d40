// Element conversion between the floating dtypes on the host.
#pragma once

#include <cstdint>

#include "dmuon/core/dtype.h"

namespace dmuon {

// destination[i] = source[i] for `count` elements, rounded once to nearest even; NaN stays NaN and overflow becomes
// infinite. Equal dtypes are copied bit for bit. Both dtypes floating, or equal. The buffers must not overlap.
void convert_elements(const void* source, DType from, void* destination, DType to, int64_t count);

}  // namespace dmuon
