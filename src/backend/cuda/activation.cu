#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/dropout.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/partial_sums.h"

namespace dmuon::cuda {
namespace {

// -------------------------------------------------------------------------------------------------- functions of a number

constexpr float cubic = 0.044715f;
constexpr float root_2_over_pi = 0.7978845608028654f;
constexpr float root_half = 0.7071067811865476f;
constexpr float inverse_root_2_pi = 0.3989422804014327f;

// 1 / (1 + exp(-2 u)) = (1 + tanh(u)) / 2, by two instructions of the special function unit instead of tanhf's twenty.
__device__ inline float half_of_one_plus_tanh(float u) { return __fdividef(1.0f, 1.0f + __expf(-2.0f * u)); }

__device__ inline float activation(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::gelu:
      return 0.5f * x * erfcf(-x * root_half);  // 1 + erf(x) without its cancellation
    case ActivationKind::gelu_tanh:
      return x * half_of_one_plus_tanh(root_2_over_pi * (x + cubic * x * x * x));
    default:
      return x < 0.0f ? 0.0f : x * x;  // NaN stays NaN
  }
}

__device__ inline float derivative(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::gelu:
      return 0.5f * erfcf(-x * root_half) + x * __expf(-0.5f * x * x) * inverse_root_2_pi;
    case ActivationKind::gelu_tanh: {
      if (fabsf(x) > 16.0f) return x > 0.0f ? 1.0f : 0.0f;  // exact there, and x * x may be infinite; NaN goes on
      const float h = half_of_one_plus_tanh(root_2_over_pi * (x + cubic * x * x * x));
      return h + 2.0f * x * h * (1.0f - h) * root_2_over_pi * (1.0f + 3.0f * cubic * x * x);
    }
    default:
      return x < 0.0f ? 0.0f : 2.0f * x;
  }
}

// ------------------------------------------------------------------------------------------------------------- by columns

constexpr int64_t most_threads = 128;

template <class T>
struct Columns {
  ActivationKind kind;
  const T *input, *bias, *d_output;
  T *output, *d_input;
  float* partials;  // [blocks of rows][packs * width], optional
  int64_t rows, columns, rows_per_block;
  unsigned tiles;  // blocks side by side in a block of rows
};

// A thread keeps its pack of columns, and with it the bias, through the rows of its block.
template <class T, bool aligned>
__global__ void activation_forward_kernel(Columns<T> a) {
  const int64_t k = static_cast<int64_t>(blockIdx.x % a.tiles) * blockDim.x + threadIdx.x;
  if (k >= packs_of<T>(a.columns)) return;
  const int64_t begin = blockIdx.x / a.tiles * a.rows_per_block, end = std::min(begin + a.rows_per_block, a.rows);
  Pack<T> bias{};
  if (a.bias) bias = load_pack<T, aligned>(a.bias, k, a.columns);
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    Pack<T> x = load_pack<T, aligned>(a.input + row * a.columns, k, a.columns);
    for (int i = 0; i < Pack<T>::size; ++i) x.at[i] = activation(a.kind, x.at[i] + bias.at[i]);
    store_pack<T, aligned>(a.output + row * a.columns, k, a.columns, x);
  }
}

template <class T, bool aligned>
__global__ void activation_backward_kernel(Columns<T> a) {
  constexpr int width = Pack<T>::size;
  const int64_t k = static_cast<int64_t>(blockIdx.x % a.tiles) * blockDim.x + threadIdx.x, packs = packs_of<T>(a.columns);
  if (k >= packs) return;
  const int64_t block = blockIdx.x / a.tiles, begin = block * a.rows_per_block, end = std::min(begin + a.rows_per_block, a.rows);
  Pack<T> bias{}, sums{};
  if (a.bias) bias = load_pack<T, aligned>(a.bias, k, a.columns);
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    const Pack<T> x = load_pack<T, aligned>(a.input + row * a.columns, k, a.columns);
    Pack<T> d = load_pack<T, aligned>(a.d_output + row * a.columns, k, a.columns);
    for (int i = 0; i < width; ++i) {
      d.at[i] *= derivative(a.kind, x.at[i] + bias.at[i]);
      sums.at[i] += d.at[i];
    }
    store_pack<T, aligned>(a.d_input + row * a.columns, k, a.columns, d);
  }
  if (!a.partials) return;
  for (int i = 0; i < width; ++i) a.partials[(block * width + i) * packs + k] = sums.at[i];
}

// Blocks for `row_blocks` blocks of rows.
template <class T>
Launch layout(const char* name, Columns<T>& a, int64_t row_blocks, cudaStream_t stream) {
  const int64_t packs = packs_of<T>(a.columns);
  const unsigned threads = threads_for(packs, most_threads);
  a.tiles = static_cast<unsigned>((packs + threads - 1) / threads);
  return {name, grid_of(name, row_blocks * a.tiles), dim3(threads), 0, stream};
}

// ------------------------------------------------------------------------------------------------------------ by elements

constexpr int64_t flat_threads = 256;

template <class T, bool aligned>
__global__ void scaled_add_kernel(const T* x, T* y, float alpha, bool accumulate, int64_t count) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= packs_of<T>(count)) return;
  const Pack<T> in = load_pack<T, aligned>(x, k, count);
  Pack<T> out{};
  if (accumulate) out = load_pack<T, aligned>(y, k, count);
  for (int i = 0; i < Pack<T>::size; ++i) out.at[i] = accumulate ? out.at[i] + alpha * in.at[i] : alpha * in.at[i];
  store_pack<T, aligned>(y, k, count, out);
}

template <class T, bool aligned>
__global__ void dropout_kernel(const T* in, T* out, Dropout dropout, int64_t count) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= packs_of<T>(count)) return;
  Pack<T> x = load_pack<T, aligned>(in, k, count);
  const DropoutFactors factor(dropout, k * Pack<T>::size);
  for (int i = 0; i < Pack<T>::size; ++i)
    if (inside<T, aligned>(k, i, count)) x.at[i] *= factor(i);
  store_pack<T, aligned>(out, k, count, x);
}

template <class T>
Launch flat(const char* name, int64_t count, cudaStream_t stream) {
  return {name, grid_of(name, (packs_of<T>(count) + flat_threads - 1) / flat_threads), dim3(flat_threads), 0, stream};
}

}  // namespace

void Activation::forward(Stream& stream, const ActivationForward& f) {
  constexpr const char* name = "activation_forward";
  backend_.enqueue(stream, name, 0, {f.input, f.bias, f.output}, [&](cudaStream_t handle) {
    const int64_t columns = f.input.size(-1);
    with_access(name, f.input, packs_are_aligned(columns, {f.input, f.bias, f.output}), [&](auto access) {
      using T = typename decltype(access)::Element;
      Columns<T> a{};
      a.kind = f.kind, a.input = elements_of<T>(f.input), a.bias = elements_of<T>(f.bias), a.output = elements_of<T>(f.output);
      a.rows = f.input.rows(), a.columns = columns, a.rows_per_block = 8;
      const int64_t blocks = (a.rows + a.rows_per_block - 1) / a.rows_per_block;
      launch(layout(name, a, blocks, handle), activation_forward_kernel<T, decltype(access)::aligned>, a);
    });
  });
}

void Activation::backward(Stream& stream, const ActivationBackward& g) {
  constexpr const char* name = "activation_backward";
  const int64_t columns = g.input.size(-1);
  const RowPartition blocks(g.input.rows(), 16);
  const int64_t width = 16 / size_of(g.input.dtype()), packs = (columns + width - 1) / width;
  const Tensor partials = backend_.workspace(g.d_bias.defined() ? blocks.count * packs * width : 0, DType::float32,
                                             "partial bias sums of an activation backward");
  backend_.enqueue(stream, name, 0, {g.input, g.bias, g.d_output, g.d_input, g.d_bias, partials}, [&](cudaStream_t handle) {
    with_access(name, g.input, packs_are_aligned(columns, {g.input, g.bias, g.d_output, g.d_input}), [&](auto access) {
      using T = typename decltype(access)::Element;
      Columns<T> a{};
      a.kind = g.kind, a.input = elements_of<T>(g.input), a.bias = elements_of<T>(g.bias);
      a.d_output = elements_of<T>(g.d_output), a.d_input = elements_of<T>(g.d_input), a.partials = elements_of<float>(partials);
      a.rows = g.input.rows(), a.columns = columns, a.rows_per_block = blocks.size;
      launch(layout(name, a, blocks.count, handle), activation_backward_kernel<T, decltype(access)::aligned>, a);
    });
    PartialSums total;
    total.partials = elements_of<float>(partials), total.blocks = blocks.count;
    total.columns = columns, total.packs = packs, total.width = static_cast<int>(width);
    total.add(g.d_bias, g.accumulate_bias);
    add_partial_sums(handle, total);
  });
}

void Activation::scaled_add(Stream& stream, const ScaledAdd& s) {
  constexpr const char* name = "scaled_add";
  backend_.enqueue(stream, name, 0, {s.x, s.y}, [&](cudaStream_t handle) {
    const int64_t count = s.y.elements();
    with_access(name, s.y, packs_are_aligned(count, {s.x, s.y}), [&](auto access) {
      using T = typename decltype(access)::Element;
      launch(flat<T>(name, count, handle), scaled_add_kernel<T, decltype(access)::aligned>, elements_of<T>(s.x), elements_of<T>(s.y),
             static_cast<float>(s.alpha), s.accumulate, count);
    });
  });
}

void Activation::dropout(Stream& stream, const ApplyDropout& d) {
  constexpr const char* name = "dropout";
  backend_.enqueue(stream, name, 0, {d.in, d.out}, [&](cudaStream_t handle) {
    const int64_t count = d.in.elements();
    with_access(name, d.in, packs_are_aligned(count, {d.in, d.out}), [&](auto access) {
      using T = typename decltype(access)::Element;
      launch(flat<T>(name, count, handle), dropout_kernel<T, decltype(access)::aligned>, elements_of<T>(d.in), elements_of<T>(d.out),
             dropout_of(d.mask, count), count);
    });
  });
}

}  // namespace dmuon::cuda
