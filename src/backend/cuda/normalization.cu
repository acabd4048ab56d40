#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/dropout.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/partial_sums.h"
#include "backend/cuda/reductions.h"

namespace dmuon::cuda {
namespace {

constexpr int64_t shared_limit = 96 * 1024;  // of one block: two fit on a multiprocessor of every supported device
constexpr int64_t most_threads = 256;        // of one row
constexpr int64_t most_team_threads = 512;   // of all teams of a backward block

// ------------------------------------------------------------------------------------------------------------- forward

template <class T>
struct Forward {
  const T *input, *branch, *branch_bias, *weight, *bias;
  T *residual, *output;
  float *mean, *inverse_deviation;
  int64_t columns;
  float epsilon;
  bool centred;
  bool held;  // the row fits into shared memory; otherwise it is read again
  Dropout dropout;
};

// A block takes a row: one read of input and branch, one write of residual and output. Every thread comes back to its own
// packs only, element i of pack k at held[i * packs + k], where neighbouring threads meet different banks.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_threads) normalization_forward_kernel(Forward<T> a) {
  DMUON_DYNAMIC_SHARED(float, held);
  constexpr int width = Pack<T>::size;
  const int64_t columns = a.columns, packs = packs_of<T>(columns), first = blockIdx.x * columns;
  const T* source = a.branch ? a.residual + first : a.input + first;
  const auto again = [&](int64_t k) {
    if (!a.held) return load_pack<T, aligned>(source, k, columns);
    Pack<T> x;
    for (int i = 0; i < width; ++i) x.at[i] = held[i * packs + k];
    return x;
  };

  const DropoutFactors factor(a.dropout, first);
  float sum = 0;
  for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
    Pack<T> x = load_pack<T, aligned>(a.input + first, k, columns);
    if (a.branch) {
      const Pack<T> branch = load_pack<T, aligned>(a.branch + first, k, columns);
      Pack<T> bias{};
      if (a.branch_bias) bias = load_pack<T, aligned>(a.branch_bias, k, columns);
      for (int i = 0; i < width; ++i) {
        if (!inside<T, aligned>(k, i, columns)) continue;
        x.at[i] = rounded<T>(x.at[i] + factor(k * width + i) * (branch.at[i] + bias.at[i]));
      }
      store_pack<T, aligned>(a.residual + first, k, columns, x);
    }
    for (int i = 0; i < width; ++i) {
      sum += x.at[i];
      if (a.held) held[i * packs + k] = x.at[i];
    }
  }
  const float mean = a.centred ? row_sum(sum) / static_cast<float>(columns) : 0.0f;

  float squares = 0;
  for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
    const Pack<T> x = again(k);
    for (int i = 0; i < width; ++i)
      if (inside<T, aligned>(k, i, columns)) squares += (x.at[i] - mean) * (x.at[i] - mean);
  }
  const float inverse_deviation = 1.0f / sqrtf(row_sum(squares) / static_cast<float>(columns) + a.epsilon);
  if (threadIdx.x == 0) {
    if (a.centred) a.mean[blockIdx.x] = mean;
    a.inverse_deviation[blockIdx.x] = inverse_deviation;
  }

  for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
    const Pack<T> x = again(k), weight = load_pack<T, aligned>(a.weight, k, columns);
    Pack<T> out{};
    if (a.bias) out = load_pack<T, aligned>(a.bias, k, columns);
    for (int i = 0; i < width; ++i) out.at[i] += weight.at[i] * ((x.at[i] - mean) * inverse_deviation);
    store_pack<T, aligned>(a.output + first, k, columns, out);
  }
}

// ------------------------------------------------------------------------------------------------------------ backward

template <class T>
struct Backward {
  const T *d_output, *d_residual, *x, *weight;
  const float *mean, *inverse_deviation;
  T *d_input, *d_branch;
  float* partials;  // [blocks][sums][packs * width]
  int64_t rows, columns, rows_per_block;
  int sums;  // column sums kept: d_weight, then d_bias and d_branch_bias where wanted
  bool want_bias, want_branch_bias;
  bool centred;
  bool held;  // the column sums of a block stand in shared memory; otherwise in `partials` itself
  Dropout dropout;
};

// With n the normalised row and g = d_output * weight: d_x = inverse_deviation * (g - mean(g) - n * mean(g n)); rms_norm
// lacks mean(g). A block takes rows_per_block rows; its teams (equal threadIdx.y) take every blockDim.y-th of them, each
// with its own column sums, which are added in the order of the teams at the end. A row is read twice; the second time it
// comes from the cache.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_team_threads) normalization_backward_kernel(Backward<T> a) {
  DMUON_DYNAMIC_SHARED(float, held);
  constexpr int width = Pack<T>::size;
  const int64_t columns = a.columns, packs = packs_of<T>(columns), places = packs * width, all = a.sums * places;
  float* const of_block = a.partials + blockIdx.x * all;
  float* const sums = a.held ? &held[0] + threadIdx.y * all : of_block;
  float* const weight_sums = sums;
  float* const bias_sums = sums + places;
  float* const branch_bias_sums = sums + (a.want_bias ? 2 : 1) * places;
  for (int s = 0; s < a.sums; ++s)
    for (int64_t k = threadIdx.x; k < packs; k += blockDim.x)
      for (int i = 0; i < width; ++i) sums[s * places + i * packs + k] = 0.0f;

  const int64_t begin = blockIdx.x * a.rows_per_block, end = std::min(begin + a.rows_per_block, a.rows);
  for (int64_t around = begin; around < end; around += blockDim.y) {  // equally often in every team: they meet in barriers
    const int64_t row = around + threadIdx.y, first = row * columns;
    const bool mine = row < end;
    const float mean = mine && a.centred ? a.mean[row] : 0.0f, inverse_deviation = mine ? a.inverse_deviation[row] : 0.0f;
    float2 means{0, 0};  // of g and of g n
    for (int64_t k = threadIdx.x; mine && k < packs; k += blockDim.x) {
      const Pack<T> d = load_pack<T, aligned>(a.d_output + first, k, columns), x = load_pack<T, aligned>(a.x + first, k, columns);
      const Pack<T> weight = load_pack<T, aligned>(a.weight, k, columns);
      for (int i = 0; i < width; ++i) {
        const float normalized = (x.at[i] - mean) * inverse_deviation, gradient = d.at[i] * weight.at[i];
        means.x += gradient;
        means.y += gradient * normalized;
        weight_sums[i * packs + k] += d.at[i] * normalized;
        if (a.want_bias) bias_sums[i * packs + k] += d.at[i];
      }
    }
    means = row_sums(means);
    const float gradient_mean = a.centred ? means.x / static_cast<float>(columns) : 0.0f;
    const float product_mean = means.y / static_cast<float>(columns);
    const DropoutFactors factor(a.dropout, first);
    for (int64_t k = threadIdx.x; mine && k < packs; k += blockDim.x) {
      const Pack<T> d = load_pack<T, aligned>(a.d_output + first, k, columns), x = load_pack<T, aligned>(a.x + first, k, columns);
      const Pack<T> weight = load_pack<T, aligned>(a.weight, k, columns);
      Pack<T> d_input{}, d_branch;
      if (a.d_residual) d_input = load_pack<T, aligned>(a.d_residual + first, k, columns);
      for (int i = 0; i < width; ++i) {
        const float normalized = (x.at[i] - mean) * inverse_deviation, gradient = d.at[i] * weight.at[i];
        d_input.at[i] += inverse_deviation * (gradient - gradient_mean - normalized * product_mean);
        d_branch.at[i] = factor(k * width + i) * d_input.at[i];
        if (a.want_branch_bias) branch_bias_sums[i * packs + k] += d_branch.at[i];
      }
      store_pack<T, aligned>(a.d_input + first, k, columns, d_input);
      if (a.d_branch) store_pack<T, aligned>(a.d_branch + first, k, columns, d_branch);
    }
  }
  if (!a.held) return;
  __syncthreads();
  for (int64_t p = threadIdx.y * blockDim.x + threadIdx.x; p < all; p += blockDim.x * blockDim.y) {
    float sum = 0;
    for (unsigned team = 0; team < blockDim.y; ++team) sum += held[team * all + p];
    of_block[p] = sum;
  }
}

}  // namespace

void Normalization::forward(Stream& stream, const NormalizationForward& f) {
  constexpr const char* name = "normalization_forward";
  const int64_t rows = f.input.rows(), columns = f.input.size(-1);
  backend_.enqueue(
      stream, name, 0, {f.input, f.branch, f.branch_bias, f.residual, f.weight, f.bias, f.output, f.mean, f.inverse_deviation},
      [&](cudaStream_t handle) {
        const bool aligned = packs_are_aligned(columns, {f.input, f.branch, f.branch_bias, f.residual, f.weight, f.bias, f.output});
        with_access(name, f.input, aligned, [&](auto access) {
          using T = typename decltype(access)::Element;
          const int64_t packs = packs_of<T>(columns), bytes = packs * 16 / static_cast<int64_t>(sizeof(T)) * 4;
          Forward<T> a;
          a.input = elements_of<T>(f.input), a.branch = elements_of<T>(f.branch), a.branch_bias = elements_of<T>(f.branch_bias);
          a.weight = elements_of<T>(f.weight), a.bias = elements_of<T>(f.bias);
          a.residual = elements_of<T>(f.residual), a.output = elements_of<T>(f.output);
          a.mean = elements_of<float>(f.mean), a.inverse_deviation = f.inverse_deviation.data<float>();
          a.columns = columns, a.epsilon = static_cast<float>(f.epsilon);
          a.centred = f.kind == NormalizationKind::layer_norm;
          a.held = bytes <= shared_limit;
          a.dropout = dropout_of(f.dropout, rows * columns);
          launch({name, grid_of(name, columns > 0 ? rows : 0), dim3(threads_for(packs, most_threads)),
                  a.held ? static_cast<size_t>(bytes) : 0, handle},
                 normalization_forward_kernel<T, decltype(access)::aligned>, a);
        });
      });
}

void Normalization::backward(Stream& stream, const NormalizationBackward& g) {
  constexpr const char* name = "normalization_backward";
  const int64_t rows = g.normalized_input.rows(), columns = g.normalized_input.size(-1);
  const int64_t width = 16 / size_of(g.normalized_input.dtype()), packs = (columns + width - 1) / width;
  const int sums = 1 + g.d_bias.defined() + g.d_branch_bias.defined();
  // Teams: as many as fit, so that a multiprocessor works on many rows at once. All of this follows from the shape alone.
  const int64_t bytes = sums * packs * width * 4, threads = threads_for(packs, most_threads);
  const bool held = bytes <= shared_limit;
  const int64_t teams =
      held && bytes > 0 ? std::max<int64_t>(1, std::min({int64_t{8}, most_team_threads / threads, shared_limit / 2 / bytes})) : 1;
  const RowPartition blocks(rows, 4 * teams, teams);
  const Tensor partials =
      backend_.workspace(blocks.count * sums * packs * width, DType::float32, "partial sums of a normalisation backward");
  backend_.enqueue(
      stream, name, 0,
      {g.d_output, g.d_residual, g.normalized_input, g.mean, g.inverse_deviation, g.weight, g.d_input, g.d_branch, g.d_branch_bias,
       g.d_weight, g.d_bias, partials},
      [&](cudaStream_t handle) {
        const bool aligned = packs_are_aligned(columns, {g.d_output, g.d_residual, g.normalized_input, g.weight, g.d_input, g.d_branch});
        with_access(name, g.d_output, aligned, [&](auto access) {
          using T = typename decltype(access)::Element;
          Backward<T> a;
          a.d_output = elements_of<T>(g.d_output), a.d_residual = elements_of<T>(g.d_residual);
          a.x = elements_of<T>(g.normalized_input), a.weight = elements_of<T>(g.weight);
          a.mean = elements_of<float>(g.mean), a.inverse_deviation = g.inverse_deviation.data<float>();
          a.d_input = elements_of<T>(g.d_input), a.d_branch = elements_of<T>(g.d_branch);
          a.partials = elements_of<float>(partials);
          a.rows = rows, a.columns = columns, a.rows_per_block = blocks.size;
          a.sums = sums, a.want_bias = g.d_bias.defined(), a.want_branch_bias = g.d_branch_bias.defined();
          a.centred = g.kind == NormalizationKind::layer_norm, a.held = held;
          a.dropout = dropout_of(g.dropout, rows * columns);
          launch({name, grid_of(name, columns > 0 ? blocks.count : 0), dim3(static_cast<unsigned>(threads), static_cast<unsigned>(teams)),
                  held ? static_cast<size_t>(teams * bytes) : 0, handle},
                 normalization_backward_kernel<T, decltype(access)::aligned>, a);
        });
        PartialSums total;
        total.partials = elements_of<float>(partials), total.blocks = blocks.count;
        total.columns = columns, total.packs = packs, total.width = static_cast<int>(width);
        total.add(g.d_weight, g.accumulate_weight);
        total.add(g.d_bias, g.accumulate_bias);
        total.add(g.d_branch_bias, g.accumulate_branch_bias);
        add_partial_sums(handle, total);
      });
}

}  // namespace dmuon::cuda
