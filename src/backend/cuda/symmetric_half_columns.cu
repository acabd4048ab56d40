// Symmetric products of float16: X^T X, both operands contiguous across k.
#include "backend/cuda/symmetric_half.h"

namespace dmuon::cuda {

template bool start_symmetric_half<false, false>(cudaStream_t, const SymmetricBatch<__half>&, int, int, int, int);

}  // namespace dmuon::cuda
