// Symmetric products of float16: X X^T, both operands contiguous along k.
#include "backend/cuda/symmetric_half.h"

namespace dmuon::cuda {

template bool start_symmetric_half<true, true>(cudaStream_t, const SymmetricBatch<__half>&, int, int, int, int);

}  // namespace dmuon::cuda
