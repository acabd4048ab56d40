// The passes of the update rules over their tensors.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_passes.h"

namespace dmuon::cuda {
namespace {

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

}  // namespace dmuon::cuda
