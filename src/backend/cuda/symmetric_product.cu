#include "backend/cuda/symmetric_product.h"

#include <algorithm>
#include <array>
#include <bit>

#include "backend/cuda/symmetric_tiles.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

// symmetric_half_*.cu
template <bool a_along_k, bool b_along_k>
bool start_symmetric_half(cudaStream_t stream, const SymmetricBatch<__half>& batch, int count, int rows, int columns, int depth);

namespace {

constexpr SymmetricForm tiles_of(int rows, int columns, int depth) { return {SymmetricForm::Kind::kernel, rows, columns, depth}; }
constexpr std::array<SymmetricForm, 5> forms = {
    {tiles_of(64, 64, 3), tiles_of(64, 64, 4), tiles_of(128, 64, 3), tiles_of(128, 128, 3), tiles_of(128, 128, 4)}};

// ------------------------------------------------------------------------------------------------------------------ float32
// A block of 16 x 16 threads computes a tile of 64 x 64, each thread 4 x 4 of it.

constexpr int tile = 64, slice = 16, side = 16, per_thread = tile / side, single_threads = side * side;

// Element i of a slice of an operand as thread numbers run: neighbours lie next to each other in memory.
struct SliceElement {
  int across, along_k;
};
__device__ SliceElement slice_element(int i, bool along_k) {
  if (along_k) return {i / slice, i % slice};
  return {i % tile, i / tile};
}
__device__ float operand(const float* in, bool along_k, int64_t n, int64_t k, int64_t across, int64_t at) {
  if (across >= n || at >= k) return 0.0f;
  return along_k ? in[across * k + at] : in[at * n + across];
}

__global__ void __launch_bounds__(single_threads) symmetric_single_kernel(SymmetricBatch<float> batch, bool a_along_k, bool b_along_k) {
  DMUON_SHARED(float, a, slice*(tile + 4));
  DMUON_SHARED(float, b, slice*(tile + 4));
  DMUON_SHARED(float, result, tile*(tile + 1));
  const TilePlace place = tile_place(blockIdx.x, tile, tile);
  const SymmetricMatrix<float>& matrix = batch.matrix[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x), row = thread / side, column = thread % side;
  float sums[per_thread][per_thread]{};
  for (int64_t first = 0; first < batch.k; first += slice) {
    __syncthreads();
    for (int i = thread; i < tile * slice; i += single_threads) {
      const SliceElement left = slice_element(i, a_along_k), right = slice_element(i, b_along_k);
      a[left.along_k * (tile + 4) + left.across] =
          operand(matrix.a, a_along_k, batch.n, batch.k, place.row + left.across, first + left.along_k);
      b[right.along_k * (tile + 4) + right.across] =
          operand(matrix.b, b_along_k, batch.n, batch.k, place.column + right.across, first + right.along_k);
    }
    __syncthreads();
    for (int k = 0; k < slice; ++k) {
      float left[per_thread], right[per_thread];
      for (int i = 0; i < per_thread; ++i) left[i] = a[k * (tile + 4) + row * per_thread + i];
      for (int j = 0; j < per_thread; ++j) right[j] = b[k * (tile + 4) + column * per_thread + j];
      for (int i = 0; i < per_thread; ++i)
        for (int j = 0; j < per_thread; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
  }
  for (int i = 0; i < per_thread; ++i)
    for (int j = 0; j < per_thread; ++j) {
      const int r = row * per_thread + i, c = column * per_thread + j;
      result[r * (tile + 1) + c] = symmetric_value(batch, matrix, sums[i][j], place.row + r, place.column + c, [](float x) { return x; });
    }
  __syncthreads();
  const int64_t n = batch.n;
  for (int i = thread; i < tile * tile; i += single_threads) {
    const int fast = i % tile, slow = i / tile;
    const int64_t r = place.row + slow, c = place.column + fast;
    if (r < n && c <= r) matrix.d[r * n + c] = result[slow * (tile + 1) + fast];
    const int64_t mirrored_r = place.row + fast, mirrored_c = place.column + slow;
    if (mirrored_r < n && mirrored_c < mirrored_r) matrix.d[mirrored_c * n + mirrored_r] = result[fast * (tile + 1) + slow];
  }
}

// ----------------------------------------------------------------------------------------------------------------- launches

template <class T>
const T* elements_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.raw());
}

// Whether every row of the matrix begins at a multiple of 16 bytes.
bool rows_at_once(const Tensor& matrix) {
  return reinterpret_cast<uintptr_t>(matrix.raw()) % 16 == 0 && matrix.size(1) * size_of(matrix.dtype()) % 16 == 0;
}

// Operands as one of the three layouts: a^T b^T of a symmetric result is b a.
struct Operands {
  const std::vector<Tensor>*a, *b;
  bool a_along_k, b_along_k;
  int64_t n, k;
};
Operands operands_of(const BatchedProduct& p) {
  const bool swapped = p.transpose_a && p.transpose_b;
  const SymmetricShape shape = SymmetricShape::of(p);
  return {swapped ? &p.b : &p.a, swapped ? &p.a : &p.b, shape.a_along_k, shape.b_along_k, shape.n, shape.k};
}

// Calls start(batch, count) for every run of matrices that one launch takes.
template <class T, class Start>
void for_batches(const BatchedProduct& p, const Operands& o, const Start& start) {
  SymmetricBatch<T> batch{};
  batch.n = o.n, batch.k = o.k;
  batch.beta = static_cast<float>(p.beta), batch.diagonal = static_cast<float>(p.diagonal);
  const size_t matrices = p.d.size();
  for (size_t first = 0; first < matrices; first += symmetric_batch) {
    const size_t count = std::min<size_t>(symmetric_batch, matrices - first);
    batch.at_once = batch.store_at_once = true;
    for (size_t i = 0; i < count; ++i) {
      const Tensor &a = (*o.a)[first + i], &b = (*o.b)[first + i], &d = p.d[first + i];
      const double alpha = p.alphas.empty() ? p.alpha : p.alphas[first + i];
      const T* c = p.beta != 0.0 ? elements_of<T>(p.c[first + i]) : nullptr;
      batch.matrix[i] = {elements_of<T>(a), elements_of<T>(b), c, static_cast<T*>(d.raw()), static_cast<float>(alpha)};
      batch.at_once = batch.at_once && rows_at_once(a) && rows_at_once(b);
      batch.store_at_once = batch.store_at_once && rows_at_once(d);
    }
    start(batch, static_cast<int>(count));
  }
}

}  // namespace

std::string SymmetricForm::name() const {
  switch (kind) {
    case Kind::blocks:
      return text("blocks", rows);
    case Kind::full:
      return "full";
    default:
      return text(rows, "x", columns, "x", depth);
  }
}

std::span<const SymmetricForm> symmetric_forms() { return forms; }

std::vector<SymmetricForm> library_forms(const SymmetricShape& shape) {
  std::vector<SymmetricForm> found;
  for (int rows = 64; rows < shape.n; rows *= 2)
    if ((shape.n + rows - 1) / rows <= 8) found.push_back({SymmetricForm::Kind::blocks, rows, 0, 0});
  found.push_back({SymmetricForm::Kind::full, 0, 0, 0});
  return found;
}

SymmetricForm fixed_symmetric_form(int64_t n, int64_t batch, int multiprocessors) {
  const auto tiles = [&](int rows, int columns) { return batch * tiles_before_row((n + rows - 1) / rows, rows / columns); };
  if (tiles(128, 128) >= 2 * multiprocessors) return tiles_of(128, 128, 3);
  if (tiles(128, 64) >= 2 * multiprocessors) return tiles_of(128, 64, 3);
  return tiles_of(64, 64, 4);
}

namespace {

// `count` 0: whatever their number.
std::array<int64_t, 5> key_of(const SymmetricShape& shape, int64_t count) {
  return {shape.n, shape.k, shape.a_along_k, shape.b_along_k, static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(count)))};
}

}  // namespace

void SymmetricForms::choose(const SymmetricShape& shape, const SymmetricForm& form) {
  if (form.kind != SymmetricForm::Kind::kernel) {
    chosen_[key_of(shape, 0)] = form;
    return;
  }
  chosen_.erase(key_of(shape, 0));
  chosen_[key_of(shape, shape.count)] = form;
}

SymmetricForm SymmetricForms::of(const BatchedProduct& product, int multiprocessors) const {
  const SymmetricShape shape = SymmetricShape::of(product);
  if (product.d[0].dtype() == DType::float16)
    for (const int64_t count : {int64_t{0}, shape.count})
      if (const auto chosen = chosen_.find(key_of(shape, count)); chosen != chosen_.end()) return chosen->second;
  return fixed_symmetric_form(shape.n, shape.count, multiprocessors);
}

bool has_symmetric_product(const BatchedProduct& p) {
  if (!p.symmetric || p.d.empty()) return false;
  const DType dtype = p.d[0].dtype();
  return (dtype == DType::float16 || dtype == DType::float32) && p.a[0].dtype() == dtype && p.b[0].dtype() == dtype &&
         p.d[0].size(0) <= widest_symmetric;
}

void start_symmetric_product(cudaStream_t stream, const BatchedProduct& product, const SymmetricForm& form) {
  const Operands o = operands_of(product);
  if (product.d[0].dtype() == DType::float32)
    return for_batches<float>(product, o, [&](const SymmetricBatch<float>& batch, int count) {
      const int64_t tiles = tiles_before_row((o.n + tile - 1) / tile, 1);
      launch({"symmetric_product", dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(count)), dim3(single_threads), 0, stream},
             symmetric_single_kernel, batch, o.a_along_k, o.b_along_k);
    });
  for_batches<__half>(product, o, [&](const SymmetricBatch<__half>& batch, int count) {
    const auto start = o.b_along_k   ? start_symmetric_half<true, true>
                       : o.a_along_k ? start_symmetric_half<true, false>
                                     : start_symmetric_half<false, false>;
    if (!start(stream, batch, count, form.rows, form.columns, form.depth))
      throw DeviceError(text("symmetric_product: no form ", form.name(), " of tiles and depth"));
  });
}

}  // namespace dmuon::cuda
