#include <cmath>
#include <vector>

#include "backend/convert.h"
#include "backend/cpu/cpu_backend.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cpu {
namespace {

constexpr int64_t worthwhile_elements = 32768, cut = 16384;

int64_t chunks_of(int64_t elements, int64_t chunk) { return (elements + chunk - 1) / chunk; }

// Calls body(element i as double) for i in [begin, end) of a tensor of any floating type but float32.
template <class Body>
void for_elements(const Tensor& tensor, int64_t begin, int64_t end, const Body& body) {
  switch (tensor.dtype()) {
    case DType::float64:
      for (int64_t i = begin; i < end; ++i) body(tensor.data<double>()[i]);
      return;
    case DType::bfloat16:
      for (int64_t i = begin; i < end; ++i) body(static_cast<double>(static_cast<float>(tensor.data<bfloat16>()[i])));
      return;
    case DType::float16:
      for (int64_t i = begin; i < end; ++i) body(static_cast<double>(static_cast<float>(tensor.data<float16>()[i])));
      return;
    default:
      throw ShapeError(text("a reduction over ", tensor.to_string(), ": expected a floating dtype"));
  }
}

uint16_t* bits_of(const Tensor& tensor) { return reinterpret_cast<uint16_t*>(tensor.data<bfloat16>()); }

}  // namespace

void Optimizer::adamw(Stream& stream, const AdamWPass& a) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "adamw", 0, {a.parameter, a.gradient, a.first_moment, a.second_moment, a.published, a.hyper}, [=, &simd] {
    const double* h = a.hyper.data<double>();
    simd::AdamWTask task;
    task.parameter = a.parameter.data<float>(), task.gradient = a.gradient.data<float>();
    task.first_moment = a.first_moment.data<float>(), task.second_moment = a.second_moment.data<float>();
    task.beta1 = static_cast<float>(h[AdamWPass::beta1]), task.one_minus_beta1 = static_cast<float>(1.0 - h[AdamWPass::beta1]);
    task.beta2 = static_cast<float>(h[AdamWPass::beta2]), task.one_minus_beta2 = static_cast<float>(1.0 - h[AdamWPass::beta2]);
    task.epsilon = static_cast<float>(h[AdamWPass::epsilon]), task.gradient_scale = static_cast<float>(h[AdamWPass::gradient_scale]);
    task.decay = static_cast<float>(h[AdamWPass::learning_rate] * h[AdamWPass::weight_decay]);
    task.step = static_cast<float>(h[AdamWPass::learning_rate] / h[AdamWPass::correction1]);
    task.inverse_sqrt_second = static_cast<float>(1.0 / std::sqrt(h[AdamWPass::correction2]));
    task.published = published_of(a.published);
    team.split(a.parameter.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) { simd.adamw(task, begin, end); });
  });
}

void Optimizer::sgd(Stream& stream, const SgdPass& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "sgd", 0, {s.parameter, s.gradient, s.momentum_buffer, s.published, s.hyper}, [=, &simd] {
    const double* h = s.hyper.data<double>();
    simd::SgdTask task;
    task.parameter = s.parameter.data<float>(), task.gradient = s.gradient.data<float>(),
    task.momentum_buffer = s.momentum_buffer.data<float>();
    task.learning_rate = static_cast<float>(h[SgdPass::learning_rate]), task.momentum = static_cast<float>(h[SgdPass::momentum]);
    task.one_minus_dampening = static_cast<float>(1.0 - h[SgdPass::dampening]);
    task.weight_decay = static_cast<float>(h[SgdPass::weight_decay]), task.gradient_scale = static_cast<float>(h[SgdPass::gradient_scale]);
    task.first_step = h[SgdPass::first_step] != 0.0, task.nesterov = h[SgdPass::nesterov] != 0.0;
    task.published = published_of(s.published);
    team.split(s.parameter.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) { simd.sgd(task, begin, end); });
  });
}

void Optimizer::muon_momentum(Stream& stream, const MuonMomentum& m) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "muon_momentum", 0, {m.gradient, m.momentum_buffer, m.update, m.square_sums, m.hyper}, [=, &simd] {
    const double* h = m.hyper.data<double>();
    simd::MuonMomentumTask task;
    task.gradient = m.gradient.data<float>(), task.momentum_buffer = m.momentum_buffer.data<float>(), task.update = m.update.data<float>();
    task.square_sums = m.square_sums.defined() ? m.square_sums.data<double>() : nullptr;
    task.chunk = m.chunk, task.elements = m.gradient.elements();
    task.momentum = static_cast<float>(h[MuonMomentum::momentum]),
    task.gradient_scale = static_cast<float>(h[MuonMomentum::gradient_scale]);
    task.gradient_factor = m.sum_form ? 1.0f : static_cast<float>(1.0 - h[MuonMomentum::momentum]);
    task.nesterov = m.nesterov;
    team.split(chunks_of(task.elements, task.chunk), 1, worthwhile_elements / task.chunk,
               [&](int, int64_t begin, int64_t end) { simd.muon_momentum(task, begin, end); });
  });
}

void Optimizer::muon_apply(Stream& stream, const MuonApply& m) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "muon_apply", 0, {m.parameter, m.update, m.published, m.hyper}, [=, &simd] {
    const double* h = m.hyper.data<double>();
    simd::MuonApplyTask task;
    task.parameter = m.parameter.data<float>(), task.update = m.update.data<float>();
    task.keep = static_cast<float>(1.0 - h[MuonApply::learning_rate] * h[MuonApply::weight_decay]);
    task.step = static_cast<float>(h[MuonApply::learning_rate] * h[MuonApply::scale]);
    task.published = published_of(m.published);
    team.split(m.parameter.elements(), 64, worthwhile_elements,
               [&](int, int64_t begin, int64_t end) { simd.muon_apply(task, begin, end); });
  });
}

void Optimizer::convert(Stream& stream, const Convert& c) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "convert", 0, {c.in, c.out}, [=, &simd] {
    const DType from = c.in.dtype(), to = c.out.dtype();
    team.split(c.in.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) {
      if (from == DType::float32 && to == DType::bfloat16) return simd.narrow_to_bfloat16(c.in.data<float>(), bits_of(c.out), begin, end);
      if (from == DType::bfloat16 && to == DType::float32) return simd.widen_bfloat16(bits_of(c.in), c.out.data<float>(), begin, end);
      convert_elements(static_cast<const char*>(c.in.raw()) + begin * size_of(from), from,
                       static_cast<char*>(c.out.raw()) + begin * size_of(to), to, end - begin);
    });
  });
}

void Optimizer::square_sums(Stream& stream, const SquareSums& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "square_sums", 0, {s.in, s.out}, [=, &simd] {
    const int64_t elements = s.in.elements();
    double* out = s.out.data<double>();
    team.split(chunks_of(elements, s.chunk), 1, worthwhile_elements / s.chunk, [&](int, int64_t begin, int64_t end) {
      if (s.in.dtype() == DType::float32) return simd.square_sums(s.in.data<float>(), elements, s.chunk, out, begin, end);
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0;
        for_elements(s.in, c * s.chunk, std::min(elements, (c + 1) * s.chunk), [&](double x) { sum += x * x; });
        out[c] = sum;
      }
    });
  });
}

void Optimizer::sum(Stream& stream, const Sum& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "sum", 0, {s.in, s.out}, [=, &simd] {
    const int64_t elements = s.in.elements(), chunks = chunks_of(elements, cut);
    std::vector<double> sums(static_cast<size_t>(chunks));
    team.split(chunks, 1, 3, [&](int, int64_t begin, int64_t end) {
      if (s.in.dtype() == DType::float32) return simd.chunk_sums(s.in.data<float>(), elements, cut, sums.data(), begin, end);
      for (int64_t c = begin; c < end; ++c)
        for_elements(s.in, c * cut, std::min(elements, (c + 1) * cut), [&](double x) { sums[static_cast<size_t>(c)] += x; });
    });
    double total = 0;
    for (const double part : sums) total += part;
    s.out.data<double>()[0] = total;
  });
}

void Optimizer::count_non_finite(Stream& stream, const CountNonFinite& c) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "count_non_finite", 0, {c.in, c.out}, [=, &simd] {
    std::vector<int64_t> counts(static_cast<size_t>(team.parts), 0);
    team.split(c.in.elements(), 64, worthwhile_elements, [&](int part, int64_t begin, int64_t end) {
      int64_t count = 0;
      if (c.in.dtype() == DType::float32)
        count = simd.count_non_finite(c.in.data<float>(), begin, end);
      else
        for_elements(c.in, begin, end, [&](double x) { count += std::isfinite(x) ? 0 : 1; });
      counts[static_cast<size_t>(part)] = count;
    });
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    c.out.data<int64_t>()[0] = total;
  });
}

}  // namespace dmuon::cpu
