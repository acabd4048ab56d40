// Around Newton-Schulz on the device: a matrix divided by its norm before, the guard behind.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_passes.h"

namespace dmuon::cuda {
namespace {

// Number after number, as Normalize and GuardUpdate promise; valid in thread 0. For blocks of pass_threads.
__device__ double ordered_sum(const double* in, int64_t count) {
  DMUON_SHARED(double, tile, pass_threads);
  double sum = 0.0;
  for (int64_t first = 0; first < count; first += pass_threads) {
    if (first + threadIdx.x < count) tile[threadIdx.x] = in[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int length = static_cast<int>(count - first < pass_threads ? count - first : pass_threads);
#pragma unroll 8  // the reads of several numbers at once: only the additions wait for one another
      for (int i = 0; i < length; ++i) sum += tile[i];
    }
    __syncthreads();
  }
  return sum;
}

// The two factors that divide a matrix by its norm: a power of two that brings the norm halfway to 1, exactly, and the rest.
// Together they may be as far from 1 as float32 cannot say. A zero matrix keeps its zeros; a norm that is not finite gives NaN.
struct NormFactors {
  const double* square_sums;
  int64_t chunks;
  int epsilon_mode;
  double epsilon, safety;
};
__global__ void norm_factors_kernel(NormFactors f, float* factors) {
  const double sum = ordered_sum(f.square_sums, f.chunks);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum);
  double divisor = norm + f.epsilon;
  if (f.epsilon_mode == 1) divisor = norm > f.epsilon ? norm : f.epsilon;
  if (f.epsilon_mode == 2) divisor = norm * f.safety + f.epsilon;
  if (norm == 0.0) divisor = 1.0;
  int exponent = 0;
  const bool finite = norm - norm == 0.0;
  if (finite) frexp(divisor, &exponent);
  const int half = exponent / 2;
  factors[0] = ldexpf(1.0f, -half);
  factors[1] = finite ? static_cast<float>(ldexp(1.0, half) / divisor) : static_cast<float>(norm - norm);
}
template <class To>
__global__ void normalize_kernel(const float* in, To* out, const float* factors, int64_t elements, bool at_once) {
  const float first = factors[0], second = factors[1];
  for (int group = 0; group < pass_groups; ++group) {
    const int64_t i = blockIdx.x * pass_elements + 4 * (static_cast<int64_t>(group) * pass_threads + threadIdx.x);
    if (i >= elements) return;
    const int count = static_cast<int>(elements - i < 4 ? elements - i : 4);
    const Four<float> from = load_four(in, i, count, at_once);
    Four<To> to{};
    for (int j = 0; j < 4; ++j) narrow(from.v[j] * first * second, to.v[j]);
    store_four(out, i, count, at_once, to);
  }
}

// Each block looks at the sums by itself; the first one hands out the hyper-parameters. Few blocks, since a failure is rare.
constexpr int64_t guard_blocks = 32;
struct Guard {
  const double* square_sums;
  int64_t chunks;
  double limit;
  bool withhold;
  const double* hyper;
  double* guarded_hyper;
  int32_t* failed;
};
template <class T>
__global__ void guard_kernel(Guard g, T* update, int64_t elements) {
  DMUON_SHARED(int, failed, 1);
  const double sum = ordered_sum(g.square_sums, g.chunks);
  if (threadIdx.x == 0) failed[0] = sum - sum == 0.0 && sum <= g.limit ? 0 : 1;
  __syncthreads();
  const bool withheld = failed[0] != 0 && g.withhold;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) g.failed[0] = failed[0];
    if (g.guarded_hyper && threadIdx.x < MuonApply::count) g.guarded_hyper[threadIdx.x] = withheld ? 0.0 : g.hyper[threadIdx.x];
  }
  if (!withheld) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * pass_threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * pass_threads + threadIdx.x; i < elements; i += stride) narrow(0.0f, update[i]);
}

}  // namespace

void Optimizer::normalize(Stream& stream, const Normalize& n) {
  const Tensor factors = backend_.workspace(2, DType::float32, "factors of a norm");
  backend_.enqueue(stream, "normalize", 0, {n.in, n.square_sums, n.out, factors}, [&](cudaStream_t handle) {
    const NormFactors norm{n.square_sums.data<double>(), n.square_sums.elements(), n.epsilon_mode, n.epsilon, n.safety};
    launch({"norm_factors", dim3(1), dim3(pass_threads), 0, handle}, norm_factors_kernel, norm, factors.data<float>());
    const float* in = n.in.data<float>();
    const auto start = [&](auto* out) {
      using To = std::remove_pointer_t<decltype(out)>;
      launch({"normalize", blocks_for(n.in.elements(), pass_elements), dim3(pass_threads), 0, handle}, normalize_kernel<To>, in, out,
             factors.data<float>(), n.in.elements(), all_movable(in) && all_movable(out));
    };
    if (n.out.dtype() == DType::float16)
      start(reinterpret_cast<__half*>(n.out.data<float16>()));
    else
      start(n.out.data<float>());
  });
}

void Optimizer::guard(Stream& stream, const GuardUpdate& a) {
  backend_.enqueue(stream, "guard_update", 0, {a.square_sums, a.update, a.hyper, a.guarded_hyper, a.failed}, [&](cudaStream_t handle) {
    Guard guard{a.square_sums.data<double>(), a.square_sums.elements(), a.limit, a.withhold, nullptr, nullptr, a.failed.data<int32_t>()};
    if (a.hyper.defined()) guard.hyper = a.hyper.data<double>(), guard.guarded_hyper = a.guarded_hyper.data<double>();
    const auto start = [&](auto* update) {
      using T = std::remove_pointer_t<decltype(update)>;
      launch({"guard_update", dim3(guard_blocks), dim3(pass_threads), 0, handle}, guard_kernel<T>, guard, update, a.update.elements());
    };
    if (a.update.dtype() == DType::float16)
      start(reinterpret_cast<__half*>(a.update.data<float16>()));
    else
      start(a.update.data<float>());
  });
}

}  // namespace dmuon::cuda
