// The passes of the update rules over their tensors, and reductions. Compiled without contraction to fused multiply-adds, like
// the passes of the CPU backend, so that both round alike. Reductions to float64 have one order each, that of chunk_sum.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_elements.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

constexpr int pass_threads = 256, pass_groups = 4;  // groups of four elements for each thread
constexpr int64_t pass_elements = 4 * pass_threads * pass_groups;
constexpr int sum_threads = 512, sum_warps = sum_threads / 32;
constexpr int64_t sum_chunk = 16384;  // of Sum and CountNonFinite
constexpr int most_constants = 16;

// One pass over a parameter. A Pass has the number of its constants, computes each from the hyper-parameters on the device,
// and updates a group of up to four elements.
template <class Pass>
__global__ void pass_kernel(Pass pass, int64_t elements) {
  DMUON_SHARED(float, shared, most_constants);
  if (threadIdx.x < Pass::constants) shared[threadIdx.x] = pass.constant(static_cast<int>(threadIdx.x));
  __syncthreads();
  float constants[Pass::constants];
  for (int i = 0; i < Pass::constants; ++i) constants[i] = shared[i];
  for (int group = 0; group < pass_groups; ++group) {
    const int64_t i = blockIdx.x * pass_elements + 4 * (static_cast<int64_t>(group) * pass_threads + threadIdx.x);
    if (i < elements) pass.update(constants, i, static_cast<int>(elements - i < 4 ? elements - i : 4));
  }
}

struct AdamW {
  float *parameter, *first_moment, *second_moment;
  const float* gradient;
  const double* hyper;
  PublishedCopy published;
  bool at_once;

  enum { beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, gradient_scale, decay, step, inverse_sqrt_second };
  static constexpr int constants = 9;
  __device__ float constant(int i) const {
    const double* h = hyper;
    switch (i) {
      case beta1:
        return static_cast<float>(h[AdamWPass::beta1]);
      case one_minus_beta1:
        return static_cast<float>(1.0 - h[AdamWPass::beta1]);
      case beta2:
        return static_cast<float>(h[AdamWPass::beta2]);
      case one_minus_beta2:
        return static_cast<float>(1.0 - h[AdamWPass::beta2]);
      case epsilon:
        return static_cast<float>(h[AdamWPass::epsilon]);
      case gradient_scale:
        return static_cast<float>(h[AdamWPass::gradient_scale]);
      case decay:
        return static_cast<float>(h[AdamWPass::learning_rate] * h[AdamWPass::weight_decay]);
      case step:
        return static_cast<float>(h[AdamWPass::learning_rate] / h[AdamWPass::correction1]);
      default:
        return static_cast<float>(1.0 / sqrt(h[AdamWPass::correction2]));
    }
  }
  __device__ void update(const float* c, int64_t i, int count) const {
    const Four<float> gradients = load_four(gradient, i, count, at_once);
    Four<float> p = load_four(parameter, i, count, at_once), m = load_four(first_moment, i, count, at_once),
                v = load_four(second_moment, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const float g = c[gradient_scale] * gradients.v[j];
      m.v[j] = c[beta1] * m.v[j] + c[one_minus_beta1] * g;
      v.v[j] = c[beta2] * v.v[j] + c[one_minus_beta2] * (g * g);
      const float denominator = sqrtf(v.v[j]) * c[inverse_sqrt_second] + c[epsilon];
      p.v[j] = p.v[j] - c[decay] * p.v[j] - c[step] * (m.v[j] / denominator);
    }
    store_four(first_moment, i, count, at_once, m);
    store_four(second_moment, i, count, at_once, v);
    store_four(parameter, i, count, at_once, p);
    published.store(i, count, p);
  }
};

struct Sgd {
  float *parameter, *momentum_buffer;
  const float* gradient;
  const double* hyper;
  PublishedCopy published;
  bool at_once;

  enum { learning_rate, momentum, one_minus_dampening, weight_decay, gradient_scale, first_step, nesterov };
  static constexpr int constants = 7;
  __device__ float constant(int i) const {
    const double* h = hyper;
    switch (i) {
      case learning_rate:
        return static_cast<float>(h[SgdPass::learning_rate]);
      case momentum:
        return static_cast<float>(h[SgdPass::momentum]);
      case one_minus_dampening:
        return static_cast<float>(1.0 - h[SgdPass::dampening]);
      case weight_decay:
        return static_cast<float>(h[SgdPass::weight_decay]);
      case gradient_scale:
        return static_cast<float>(h[SgdPass::gradient_scale]);
      case first_step:
        return h[SgdPass::first_step] != 0.0 ? 1.0f : 0.0f;
      default:
        return h[SgdPass::nesterov] != 0.0 ? 1.0f : 0.0f;
    }
  }
  __device__ void update(const float* c, int64_t i, int count) const {
    const bool first = c[first_step] != 0.0f;  // then the buffer is not read
    const Four<float> gradients = load_four(gradient, i, count, at_once);
    Four<float> p = load_four(parameter, i, count, at_once), m{};
    if (!first) m = load_four(momentum_buffer, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const float g = c[gradient_scale] * gradients.v[j];
      m.v[j] = first ? g : c[momentum] * m.v[j] + c[one_minus_dampening] * g;
      const float u = c[nesterov] != 0.0f ? g + c[momentum] * m.v[j] : m.v[j];
      p.v[j] = p.v[j] - c[learning_rate] * (u + c[weight_decay] * p.v[j]);
    }
    store_four(momentum_buffer, i, count, at_once, m);
    store_four(parameter, i, count, at_once, p);
    published.store(i, count, p);
  }
};

template <class Update>
struct MuonUpdate {
  float* parameter;
  const Update* update_direction;
  const double* hyper;
  PublishedCopy published;
  bool at_once;

  enum { keep, step };
  static constexpr int constants = 2;
  __device__ float constant(int i) const {
    const double* h = hyper;
    return i == keep ? static_cast<float>(1.0 - h[MuonApply::learning_rate] * h[MuonApply::weight_decay])
                     : static_cast<float>(h[MuonApply::learning_rate] * h[MuonApply::scale]);
  }
  __device__ void update(const float* c, int64_t i, int count) const {
    const Four<Update> u = load_four(update_direction, i, count, at_once);
    Four<float> p = load_four(parameter, i, count, at_once);
    for (int j = 0; j < 4; ++j) p.v[j] = p.v[j] * c[keep] - c[step] * widen(u.v[j]);
    store_four(parameter, i, count, at_once, p);
    published.store(i, count, p);
  }
};

template <class Pass>
void start_pass(const char* name, const Pass& pass, int64_t elements, cudaStream_t stream) {
  launch({name, blocks_for(elements, pass_elements), dim3(pass_threads), 0, stream}, pass_kernel<Pass>, pass, elements);
}

// The sum of every thread's `value`, in one order: a tree within a warp, then warp after warp. Valid in thread 0.
__device__ double block_sum(double value) {
  DMUON_SHARED(double, of_warps, sum_warps);
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(~0u, value, by);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0.0;
  double sum = 0.0;
  for (int warp = 0; warp < sum_warps; ++warp) sum += of_warps[warp];
  return sum;
}

// Calls body(i, count) for this thread's groups of up to four elements of the chunk [begin, end): every sum_threads-th.
template <class Body>
__device__ void for_groups(int64_t begin, int64_t end, const Body& body) {
#pragma unroll 2
  for (int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x); i < end; i += 4 * sum_threads)
    body(i, static_cast<int>(end - i < 4 ? end - i : 4));
}

__device__ int64_t end_of_chunk(int64_t elements, int64_t chunk) {
  const int64_t end = (static_cast<int64_t>(blockIdx.x) + 1) * chunk;
  return end < elements ? end : elements;
}

struct Momentum {
  const float* gradient;
  float *momentum_buffer, *update;
  const double* hyper;
  double* square_sums;
  int64_t elements, chunk;
  bool sum_form, nesterov, at_once;
};

// A block for every chunk.
__global__ void muon_momentum_kernel(Momentum m) {
  const double* h = m.hyper;
  const float momentum = static_cast<float>(h[MuonMomentum::momentum]), scale = static_cast<float>(h[MuonMomentum::gradient_scale]);
  const float factor = m.sum_form ? 1.0f : static_cast<float>(1.0 - h[MuonMomentum::momentum]);
  double sum = 0.0;
  for_groups(blockIdx.x * m.chunk, end_of_chunk(m.elements, m.chunk), [&](int64_t i, int count) {
    Four<float> u = load_four(m.gradient, i, count, m.at_once), buffer = load_four(m.momentum_buffer, i, count, m.at_once);
    for (int j = 0; j < 4; ++j) {
      const float g = factor * (scale * u.v[j]);
      buffer.v[j] = momentum * buffer.v[j] + g;
      u.v[j] = m.nesterov ? g + momentum * buffer.v[j] : buffer.v[j];
      if (j < count) sum += static_cast<double>(u.v[j]) * static_cast<double>(u.v[j]);
    }
    store_four(m.momentum_buffer, i, count, m.at_once, buffer);
    store_four(m.update, i, count, m.at_once, u);
  });
  if (!m.square_sums) return;
  sum = block_sum(sum);
  if (threadIdx.x == 0) m.square_sums[blockIdx.x] = sum;
}

// out[c] = sum of the elements of chunk c, or of their squares. A block for every chunk.
template <class T>
__global__ void chunk_sum_kernel(const T* in, double* out, int64_t elements, int64_t chunk, bool squares, bool at_once) {
  double sum = 0.0;
  for_groups(blockIdx.x * chunk, end_of_chunk(elements, chunk), [&](int64_t i, int count) {
    const Four<T> four = load_four(in, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const double x = static_cast<double>(widen(four.v[j]));
      if (j < count) sum += squares ? x * x : x;
    }
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// One block: the sum of `count` numbers.
__global__ void total_kernel(const double* in, double* out, int64_t count) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += sum_threads) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[0] = sum;
}

// Adds to a counter that starts at zero: of whole numbers any order gives the same sum.
template <class T>
__global__ void count_non_finite_kernel(const T* in, unsigned long long* out, int64_t elements, bool at_once) {
  int found = 0;
  for_groups(blockIdx.x * sum_chunk, end_of_chunk(elements, sum_chunk), [&](int64_t i, int count) {
    const Four<T> four = load_four(in, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const double x = static_cast<double>(widen(four.v[j]));
      if (j < count && !(x - x == 0.0)) ++found;
    }
  });
  for (int by = 16; by > 0; by /= 2) found += __shfl_xor_sync(~0u, found, by);
  if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(out, static_cast<unsigned long long>(found));
}

template <class From, class To>
__global__ void convert_kernel(const From* in, To* out, int64_t elements, bool at_once) {
  for (int group = 0; group < pass_groups; ++group) {
    const int64_t i = blockIdx.x * pass_elements + 4 * (static_cast<int64_t>(group) * pass_threads + threadIdx.x);
    if (i >= elements) return;
    const int count = static_cast<int>(elements - i < 4 ? elements - i : 4);
    const Four<From> from = load_four(in, i, count, at_once);
    Four<To> to{};
    for (int j = 0; j < 4; ++j) narrow(widen(from.v[j]), to.v[j]);
    store_four(out, i, count, at_once, to);
  }
}

// Number after number, as the host would; valid in thread 0. For blocks of pass_threads.
__device__ double ordered_sum(const double* in, int64_t count) {
  DMUON_SHARED(double, tile, pass_threads);
  double sum = 0.0;
  for (int64_t first = 0; first < count; first += pass_threads) {
    if (first + threadIdx.x < count) tile[threadIdx.x] = in[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t i = 0; i < pass_threads && first + i < count; ++i) sum += tile[i];
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

// Calls body(pointer to the elements, as the device names their type) for a tensor of any floating dtype.
template <class Body>
void with_elements(const Tensor& tensor, const Body& body) {
  switch (tensor.dtype()) {
    case DType::float32:
      return body(tensor.data<float>());
    case DType::float64:
      return body(tensor.data<double>());
    case DType::float16:
      return body(reinterpret_cast<__half*>(tensor.data<float16>()));
    case DType::bfloat16:
      return body(reinterpret_cast<__nv_bfloat16*>(tensor.data<bfloat16>()));
    default:
      throw ShapeError(text("an optimizer pass over ", tensor.to_string(), ": expected a floating dtype"));
  }
}

template <class... T>
bool all_movable(const T*... pointers) {
  return (movable_by_four(pointers) && ...);
}

void start_chunk_sums(const Tensor& in, double* out, int64_t chunk, bool squares, const char* name, cudaStream_t stream) {
  with_elements(in, [&](auto* elements) {
    using T = std::remove_pointer_t<decltype(elements)>;
    launch({name, blocks_for(in.elements(), chunk), dim3(sum_threads), 0, stream}, chunk_sum_kernel<T>, elements, out, in.elements(), chunk,
           squares, chunk % 4 == 0 && movable_by_four(elements));
  });
}

}  // namespace

void Optimizer::adamw(Stream& stream, const AdamWPass& a) {
  backend_.enqueue(stream, "adamw", 0, {a.parameter, a.gradient, a.first_moment, a.second_moment, a.hyper, a.published},
                   [&](cudaStream_t handle) {
                     AdamW pass{a.parameter.data<float>(),
                                a.first_moment.data<float>(),
                                a.second_moment.data<float>(),
                                a.gradient.data<float>(),
                                a.hyper.data<double>(),
                                published_copy(a.published),
                                false};
                     pass.at_once = all_movable(pass.parameter, pass.gradient, pass.first_moment, pass.second_moment);
                     start_pass("adamw", pass, a.parameter.elements(), handle);
                   });
}

void Optimizer::sgd(Stream& stream, const SgdPass& s) {
  backend_.enqueue(stream, "sgd", 0, {s.parameter, s.gradient, s.momentum_buffer, s.hyper, s.published}, [&](cudaStream_t handle) {
    Sgd pass{s.parameter.data<float>(), s.momentum_buffer.data<float>(), s.gradient.data<float>(),
             s.hyper.data<double>(),    published_copy(s.published),     false};
    pass.at_once = all_movable(pass.parameter, pass.gradient, pass.momentum_buffer);
    start_pass("sgd", pass, s.parameter.elements(), handle);
  });
}

void Optimizer::muon_momentum(Stream& stream, const MuonMomentum& m) {
  backend_.enqueue(stream, "muon_momentum", 0, {m.gradient, m.momentum_buffer, m.update, m.square_sums, m.hyper}, [&](cudaStream_t handle) {
    Momentum pass{};
    pass.gradient = m.gradient.data<float>(), pass.momentum_buffer = m.momentum_buffer.data<float>();
    pass.update = m.update.data<float>(), pass.hyper = m.hyper.data<double>();
    pass.square_sums = m.square_sums.defined() ? m.square_sums.data<double>() : nullptr;
    pass.elements = m.gradient.elements(), pass.chunk = m.chunk;
    pass.sum_form = m.sum_form, pass.nesterov = m.nesterov;
    pass.at_once = m.chunk % 4 == 0 && all_movable(pass.gradient, pass.momentum_buffer, pass.update);
    launch({"muon_momentum", blocks_for(pass.elements, pass.chunk), dim3(sum_threads), 0, handle}, muon_momentum_kernel, pass);
  });
}

void Optimizer::muon_apply(Stream& stream, const MuonApply& m) {
  backend_.enqueue(stream, "muon_apply", 0, {m.parameter, m.update, m.published, m.hyper}, [&](cudaStream_t handle) {
    const auto start = [&](const auto* update) {
      using Update = std::remove_cv_t<std::remove_pointer_t<decltype(update)>>;
      float* parameter = m.parameter.data<float>();
      start_pass("muon_apply",
                 MuonUpdate<Update>{parameter, update, m.hyper.data<double>(), published_copy(m.published), all_movable(parameter, update)},
                 m.parameter.elements(), handle);
    };
    if (m.update.dtype() == DType::float16)
      start(reinterpret_cast<const __half*>(m.update.data<float16>()));
    else
      start(static_cast<const float*>(m.update.data<float>()));
  });
}

void Optimizer::convert(Stream& stream, const Convert& c) {
  const int64_t elements = c.in.elements();
  backend_.enqueue(stream, "convert", 0, {c.in, c.out}, [&](cudaStream_t handle) {
    if (elements == 0) return;
    if (c.in.dtype() == c.out.dtype())
      return check(cudaMemcpyAsync(c.out.raw(), c.in.raw(), static_cast<size_t>(c.in.bytes()), cudaMemcpyDeviceToDevice, handle),
                   text("conversion of ", c.in.to_string()));
    with_elements(c.in, [&](auto* in) {
      with_elements(c.out, [&](auto* out) {
        using From = std::remove_pointer_t<decltype(in)>;
        using To = std::remove_pointer_t<decltype(out)>;
        if constexpr (!std::is_same_v<From, To>)
          launch({"convert", blocks_for(elements, pass_elements), dim3(pass_threads), 0, handle}, convert_kernel<From, To>, in, out,
                 elements, all_movable(in) && all_movable(out));
      });
    });
  });
}

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

void Optimizer::square_sums(Stream& stream, const SquareSums& s) {
  backend_.enqueue(stream, "square_sums", 0, {s.in, s.out},
                   [&](cudaStream_t handle) { start_chunk_sums(s.in, s.out.data<double>(), s.chunk, true, "square_sums", handle); });
}

void Optimizer::sum(Stream& stream, const Sum& s) {
  const int64_t chunks = (s.in.elements() + sum_chunk - 1) / sum_chunk;
  const Tensor sums = backend_.workspace(chunks, DType::float64, "chunk sums");
  backend_.enqueue(stream, "sum", 0, {s.in, s.out, sums}, [&](cudaStream_t handle) {
    double* of_chunks = chunks > 0 ? sums.data<double>() : nullptr;
    start_chunk_sums(s.in, of_chunks, sum_chunk, false, "sum", handle);
    launch({"total", dim3(1), dim3(sum_threads), 0, handle}, total_kernel, of_chunks, s.out.data<double>(), chunks);
  });
}

void Optimizer::count_non_finite(Stream& stream, const CountNonFinite& c) {
  backend_.enqueue(stream, "count_non_finite", 0, {c.in, c.out}, [&](cudaStream_t handle) {
    auto* out = reinterpret_cast<unsigned long long*>(c.out.data<int64_t>());
    check(cudaMemsetAsync(out, 0, sizeof *out, handle), "zero of a count");
    with_elements(c.in, [&](auto* in) {
      using T = std::remove_pointer_t<decltype(in)>;
      launch({"count_non_finite", blocks_for(c.in.elements(), sum_chunk), dim3(sum_threads), 0, handle}, count_non_finite_kernel<T>, in,
             out, c.in.elements(), movable_by_four(in));
    });
  });
}

}  // namespace dmuon::cuda
