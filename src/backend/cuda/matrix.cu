#include <algorithm>

#include "backend/cuda/device_language.h"
#include "backend/cuda/matrix_kernels.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

constexpr unsigned line = 256;  // threads of a block that works along a line
constexpr unsigned tile = 32;   // side of the tiles that are turned over
constexpr unsigned tile_rows = 8;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }

__global__ void write_pointers_kernel(PointerTable table, void** destination) {
  destination[blockIdx.x * largest_matrix_list + threadIdx.x] = table.lists[blockIdx.x].entries[threadIdx.x];
}

template <class T>
__global__ void add_diagonal_kernel(MatrixList matrices, int64_t columns, int64_t count, float diagonal) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  T* d = static_cast<T*>(matrices.entries[blockIdx.y]);
  narrow(widen(d[i * columns + i]) + diagonal, d[i * columns + i]);
}

// Block x is the tile (row, column) of the lower triangle of tiles, counted row by row.
template <class T>
__global__ void mirror_lower_kernel(MatrixList matrices, int64_t n) {
  DMUON_SHARED(T, turned, tile * (tile + 1));
  T* d = static_cast<T*>(matrices.entries[blockIdx.y]);
  const auto index = static_cast<int64_t>(blockIdx.x);
  auto row = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(index) + 1.0) - 1.0) / 2.0);
  while (row * (row + 1) / 2 > index) --row;
  while ((row + 1) * (row + 2) / 2 <= index) ++row;
  const int64_t column = index - row * (row + 1) / 2;
  const int64_t first_row = row * tile, first_column = column * tile;
  for (unsigned y = threadIdx.y; y < tile; y += tile_rows)
    if (first_row + y < n && first_column + threadIdx.x < n)
      turned[y * (tile + 1) + threadIdx.x] = d[(first_row + y) * n + first_column + threadIdx.x];
  __syncthreads();
  for (unsigned y = threadIdx.y; y < tile; y += tile_rows) {
    const int64_t to_row = first_column + y, to_column = first_row + threadIdx.x;
    if (to_row < to_column && to_column < n) d[to_row * n + to_column] = turned[threadIdx.x * (tile + 1) + y];
  }
}

template <class T, class B>
__global__ void scale_and_add_bias_kernel(const T* c, float beta, const B* bias, T* d, int64_t columns, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float value = beta == 0.0f ? 0.0f : beta * widen(c[i]);
  if (bias != nullptr) value += widen(bias[i % columns]);
  narrow(value, d[i]);
}

// Block x: tile `x % tiles` of 32 columns, block of rows `x / tiles`; its threads in y take every eighth row.
template <class T>
__global__ void sum_columns_kernel(const T* in, float* partial, int64_t rows, int64_t columns, int64_t tiles) {
  DMUON_SHARED(float, sums, tile_rows* tile);
  const int64_t block = blockIdx.x / tiles;
  const int64_t column = (blockIdx.x % tiles) * tile + threadIdx.x;
  const int64_t last = (block + 1) * column_sum_rows, end = last < rows ? last : rows;
  float sum = 0.0f;
  if (column < columns)
    for (int64_t row = block * column_sum_rows + threadIdx.y; row < end; row += tile_rows) sum += widen(in[row * columns + column]);
  sums[threadIdx.y * tile + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (unsigned y = 1; y < tile_rows; ++y) sum += sums[y * tile + threadIdx.x];
  partial[block * columns + column] = sum;
}

__global__ void sum_partials_kernel(const float* partial, float* out, int64_t blocks, int64_t columns, bool accumulate) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0.0f;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * columns + column];
  out[column] = accumulate ? out[column] + sum : sum;
}

unsigned blocks_of(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

// Calls body(zero of the element type on the device).
template <class Body>
void with_element(DType dtype, const char* kernel, const Body& body) {
  switch (dtype) {
    case DType::float32:
      return body(float{});
    case DType::bfloat16:
      return body(__nv_bfloat16{});
    case DType::float16:
      return body(__half{});
    default:
      throw ShapeError(text(kernel, ": expected float32, bfloat16 or float16, found ", name_of(dtype)));
  }
}

MatrixList list_of(std::span<const Tensor> matrices) {
  MatrixList list{};
  for (size_t i = 0; i < matrices.size(); ++i) list.entries[i] = matrices[i].raw();
  return list;
}

}  // namespace

void write_pointers(const PointerTable& table, void* destination, cudaStream_t stream) {
  launch({"write_pointers", dim3(4), dim3(largest_matrix_list), 0, stream}, write_pointers_kernel, table, static_cast<void**>(destination));
}

void add_diagonal(std::span<const Tensor> matrices, double diagonal, cudaStream_t stream) {
  if (matrices.empty()) return;
  const int64_t columns = matrices.front().size(-1), count = std::min(matrices.front().rows(), columns);
  with_element(matrices.front().dtype(), "add_diagonal", [&](auto zero) {
    launch({"add_diagonal", dim3(blocks_of(count, line), static_cast<unsigned>(matrices.size())), dim3(line), 0, stream},
           add_diagonal_kernel<decltype(zero)>, list_of(matrices), columns, count, static_cast<float>(diagonal));
  });
}

void mirror_lower(std::span<const Tensor> matrices, cudaStream_t stream) {
  if (matrices.empty()) return;
  const int64_t n = matrices.front().size(-1), tiles = blocks_of(n, tile);
  with_element(matrices.front().dtype(), "mirror_lower", [&](auto zero) {
    launch({"mirror_lower", dim3(static_cast<unsigned>(tiles * (tiles + 1) / 2), static_cast<unsigned>(matrices.size())),
            dim3(tile, tile_rows), 0, stream},
           mirror_lower_kernel<decltype(zero)>, list_of(matrices), n);
  });
}

void scale_and_add_bias(const Tensor& c, double beta, const Tensor& bias, const Tensor& d, cudaStream_t stream) {
  const int64_t count = d.elements();
  const Launch how{"scale_and_add_bias", dim3(blocks_of(count, line)), dim3(line), 0, stream};
  with_element(d.dtype(), how.name, [&](auto zero) {
    using T = decltype(zero);
    const auto start = [&](auto bias_zero) {
      using B = decltype(bias_zero);
      launch(how, scale_and_add_bias_kernel<T, B>, static_cast<const T*>(c.raw()), static_cast<float>(beta),
             static_cast<const B*>(bias.raw()), static_cast<T*>(d.raw()), d.size(-1), count);
    };
    if (!bias.defined() || bias.dtype() == d.dtype()) return start(zero);
    with_element(bias.dtype(), how.name, start);
  });
}

int64_t column_sum_partials(int64_t rows) { return (rows + column_sum_rows - 1) / column_sum_rows; }

void sum_columns(const Tensor& in, const Tensor& partial, const Tensor& out, bool accumulate, cudaStream_t stream) {
  const int64_t rows = in.rows(), columns = in.size(-1), blocks = column_sum_partials(rows), tiles = blocks_of(columns, tile);
  with_element(in.dtype(), "column_sum", [&](auto zero) {
    using T = decltype(zero);
    launch({"column_sum", dim3(static_cast<unsigned>(tiles * blocks)), dim3(tile, tile_rows), 0, stream}, sum_columns_kernel<T>,
           static_cast<const T*>(in.raw()), static_cast<float*>(partial.raw()), rows, columns, tiles);
  });
  launch({"column_sum_partials", dim3(blocks_of(columns, line)), dim3(line), 0, stream}, sum_partials_kernel,
         static_cast<const float*>(partial.raw()), out.data<float>(), blocks, columns, accumulate);
}

}  // namespace dmuon::cuda
