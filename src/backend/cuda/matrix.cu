#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void Matrix::multiply(Stream&, const Multiply&) { missing("matrix_multiply"); }

void Matrix::batched_product(Stream&, const BatchedProduct&) { missing("matrix_batched_product"); }

void Matrix::column_sum(Stream&, const ColumnSum&) { missing("matrix_column_sum"); }

}  // namespace dmuon::cuda
