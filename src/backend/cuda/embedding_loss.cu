#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/dropout.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/reductions.h"

namespace dmuon::cuda {
namespace {

constexpr float minus_infinity = -INFINITY;
constexpr int most_loss_threads = 1024;  // of one row of logits

// A block takes a row of the output.
template <class T, bool aligned>
__global__ void embedding_forward_kernel(const int32_t* tokens, const int32_t* positions, const T* token_table, const T* position_table,
                                         T* output, int64_t columns, Dropout dropout) {
  const int64_t n = blockIdx.x, first = n * columns;
  const T* token = token_table + tokens[n] * columns;
  const T* position = position_table ? position_table + positions[n] * columns : nullptr;
  const DropoutFactors factor(dropout, first);
  for (int64_t k = threadIdx.x; k < packs_of<T>(columns); k += blockDim.x) {
    Pack<T> sum = load_pack<T, aligned>(token, k, columns), added{};
    if (position) added = load_pack<T, aligned>(position, k, columns);
    for (int i = 0; i < Pack<T>::size; ++i)
      if (inside<T, aligned>(k, i, columns)) sum.at[i] = factor(k * Pack<T>::size + i) * (sum.at[i] + added.at[i]);
    store_pack<T, aligned>(output + first, k, columns, sum);
  }
}

// The largest number seen and the sum of exp(number - largest), of any set of numbers; sets are joined in a fixed order.
struct SoftmaxSum {
  float largest = minus_infinity, sum = 0;

  // largest, or zero where nothing but -infinity was seen: a base whose distance to -infinity is not NaN.
  __device__ float base() const { return largest == minus_infinity ? 0.0f : largest; }
  __device__ void join(const SoftmaxSum& other) {
    SoftmaxSum both{fmaxf(largest, other.largest), 0};
    both.sum = sum * __expf(largest - both.base()) + other.sum * __expf(other.largest - both.base());
    *this = both;
  }
};

// Of all threads of the block (blockDim.x a multiple of 32), the same bits in all of them.
__device__ inline SoftmaxSum joined(SoftmaxSum mine) {
  DMUON_SHARED(float, largest, 32);
  DMUON_SHARED(float, sum, 32);
  for (int by = 16; by > 0; by /= 2) mine.join({__shfl_xor_sync(all_lanes, mine.largest, by), __shfl_xor_sync(all_lanes, mine.sum, by)});
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = mine.largest, sum[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  SoftmaxSum all;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) all.join({largest[w], sum[w]});
  return all;
}

template <class T>
struct Loss {
  T* logits;
  const int32_t* targets;
  float* losses;
  int64_t columns, classes;
  bool write_gradient;
  float gradient_scale;
};

// A block takes a row: one read for the largest logit and the sum, one read and write for the gradient, which begins where the
// first ended and so finds the row in the cache.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_loss_threads) softmax_cross_entropy_kernel(Loss<T> a) {
  constexpr int width = Pack<T>::size;
  T* const logits = a.logits + blockIdx.x * a.columns;
  const int32_t target = a.targets[blockIdx.x];
  const bool masked = target < 0;
  const int64_t packs = packs_of<T>(a.columns);
  if (masked) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0.0f;
    for (int64_t k = threadIdx.x; a.write_gradient && k < packs; k += blockDim.x) store_pack<T, aligned>(logits, k, a.columns, Pack<T>{});
    return;
  }
  SoftmaxSum seen;
  for (int64_t k = threadIdx.x; k * width < a.classes; k += blockDim.x) {
    Pack<T> x = load_pack<T, aligned>(logits, k, a.columns);
    SoftmaxSum of_pack;
    for (int i = 0; i < width; ++i) {
      if (k * width + i >= a.classes) x.at[i] = minus_infinity;
      of_pack.largest = fmaxf(of_pack.largest, x.at[i]);
    }
    const float largest = fmaxf(seen.largest, of_pack.largest);
    if (largest != seen.largest) {
      seen.sum *= __expf(seen.largest - (largest == minus_infinity ? 0.0f : largest));
      seen.largest = largest;
    }
    for (int i = 0; i < width; ++i) seen.sum += __expf(x.at[i] - seen.base());
  }
  seen = joined(seen);
  const float log_sum_exp = seen.base() + logf(seen.sum);
  if (threadIdx.x == 0) a.losses[blockIdx.x] = log_sum_exp - widen(logits[target]);
  if (!a.write_gradient) return;
  __syncthreads();  // the target's logit has been read
  const float base = seen.base(), factor = a.gradient_scale / seen.sum;
  for (int64_t turn = (packs - 1) / blockDim.x; turn >= 0; --turn) {
    const int64_t k = turn * blockDim.x + threadIdx.x;
    if (k >= packs) continue;
    Pack<T> x = load_pack<T, aligned>(logits, k, a.columns);
    for (int i = 0; i < width; ++i) {
      const int64_t column = k * width + i;
      x.at[i] = column < a.classes ? factor * __expf(x.at[i] - base) : 0.0f;
      if (column == target) x.at[i] -= a.gradient_scale;
    }
    store_pack<T, aligned>(logits, k, a.columns, x);
  }
}

}  // namespace

void EmbeddingLoss::embedding_forward(Stream& stream, const EmbeddingForward& f) {
  constexpr const char* name = "embedding_forward";
  backend_.enqueue(stream, name, 0, {f.tokens, f.positions, f.token_table, f.position_table, f.output}, [&](cudaStream_t handle) {
    const int64_t columns = f.output.size(-1);
    const bool placed = f.positions.defined() && f.position_table.defined();
    with_access(name, f.output, packs_are_aligned(columns, {f.token_table, f.position_table, f.output}), [&](auto access) {
      using T = typename decltype(access)::Element;
      launch({name, grid_of(name, columns > 0 ? f.tokens.elements() : 0), dim3(threads_for(packs_of<T>(columns), 256)), 0, handle},
             embedding_forward_kernel<T, decltype(access)::aligned>, f.tokens.data<int32_t>(), elements_of<int32_t>(f.positions),
             elements_of<T>(f.token_table), placed ? elements_of<T>(f.position_table) : nullptr, elements_of<T>(f.output), columns,
             dropout_of(f.dropout, f.output.elements()));
    });
  });
}

void EmbeddingLoss::softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& s) {
  constexpr const char* name = "softmax_cross_entropy";
  backend_.enqueue(stream, name, 0, {s.logits, s.targets, s.losses}, [&](cudaStream_t handle) {
    const int64_t columns = s.logits.size(-1);
    with_access(name, s.logits, packs_are_aligned(columns, {s.logits}), [&](auto access) {
      using T = typename decltype(access)::Element;
      Loss<T> a;
      a.logits = elements_of<T>(s.logits), a.targets = s.targets.data<int32_t>(), a.losses = s.losses.data<float>();
      a.columns = columns, a.classes = s.classes;
      a.write_gradient = s.write_gradient, a.gradient_scale = static_cast<float>(s.gradient_scale);
      launch({name, grid_of(name, s.targets.elements()), dim3(threads_for(packs_of<T>(columns), most_loss_threads)), 0, handle},
             softmax_cross_entropy_kernel<T, decltype(access)::aligned>, a);
    });
  });
}

}  // namespace dmuon::cuda
