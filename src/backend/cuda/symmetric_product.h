// Products whose result is symmetric, by a kernel that computes the lower triangle only.
#pragma once

#include "backend/cuda/cuda_backend.h"

namespace dmuon::cuda {

// Computes the product, which has `symmetric` set, and returns true; or does nothing and returns false, and the caller takes
// the full product. The answer depends on the shapes and types only, never on how many matrices there are. Not called in a
// shape-only pass; the product is counted already.
bool symmetric_product(CudaBackend& backend, Stream& stream, const BatchedProduct& product);

}  // namespace dmuon::cuda
