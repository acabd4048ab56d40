// The key of a product in the library (cublas_lt.h) from its tensors.
#pragma once

#include "backend/cuda/cublas_lt.h"
#include "dmuon/backend/kernels.h"

namespace dmuon::cuda {

// In bytes. Two classes of addresses, so that a matrix' algorithm, and with it its bits, hardly depends on where it lies.
inline int32_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw());
  return address % 16 == 0 ? 16 : static_cast<int32_t>(size_of(tensor.dtype()));
}

// Without the bias, which not every product can take along.
inline ProductKey key_of(const Multiply& m) {
  ProductKey key;
  key.m = m.c.rows(), key.n = m.c.size(-1), key.k = m.transpose_a ? m.a.rows() : m.a.size(-1);
  key.transpose_a = m.transpose_a, key.transpose_b = m.transpose_b;
  key.operands = m.a.dtype(), key.result = m.c.dtype();
  key.split_sums = true;
  key.alignment_a = alignment_of(m.a), key.alignment_b = alignment_of(m.b);
  key.alignment_c = key.alignment_d = alignment_of(m.c);
  return key;
}

}  // namespace dmuon::cuda
