// Symmetric products of float16: A B, the first operand contiguous along k and the second across it.
#include "backend/cuda/symmetric_half.h"

namespace dmuon::cuda {

template bool start_symmetric_half<true, false>(cudaStream_t, const SymmetricBatch<__half>&, int, int, int, int);

}  // namespace dmuon::cuda
