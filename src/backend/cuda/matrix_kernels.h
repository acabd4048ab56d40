// The small kernels around the library's products. All have one fixed order of operations.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>

#include "dmuon/core/tensor.h"

namespace dmuon::cuda {

// Matrices of one launch: kernels get them by value, so that nothing has to be copied to the device first.
inline constexpr int largest_matrix_list = 64;
struct MatrixList {
  std::array<void*, largest_matrix_list> entries;
};

// Of a batch by pointers: where its a, b, c and d are. To be copied into device memory by write_pointers.
struct PointerTable {
  MatrixList lists[4];
};
void write_pointers(const PointerTable& table, void* destination, cudaStream_t stream);

// d_i[m, n] += diagonal * I of up to largest_matrix_list matrices of one type and size.
void add_diagonal(std::span<const Tensor> matrices, double diagonal, cudaStream_t stream);
// The upper triangles become the lower ones, bit for bit.
void mirror_lower(std::span<const Tensor> matrices, cudaStream_t stream);

// d = beta * c + bias on every row; beta == 0 does not read c, which may be d. d: float32, bfloat16 or float16; c: d's dtype;
// bias: float32 or d's dtype, undefined for none.
void scale_and_add_bias(const Tensor& c, double beta, const Tensor& bias, const Tensor& d, cudaStream_t stream);

// out[columns] (float32) = column sums of in[rows, columns] (float32 or bfloat16), added to out when `accumulate`. Rows are added
// in order within blocks of column_sum_rows rows, then the blocks. `partial`: float32 [column_sum_partials(rows) * columns].
inline constexpr int64_t column_sum_rows = 512;
int64_t column_sum_partials(int64_t rows);
void sum_columns(const Tensor& in, const Tensor& partial, const Tensor& out, bool accumulate, cudaStream_t stream);

}  // namespace dmuon::cuda
