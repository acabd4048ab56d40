#include "backend/cpu/cpu_backend.h"

namespace dmuon::cpu {
namespace {

simd::Activation kind_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::gelu:
      return simd::Activation::gelu;
    case ActivationKind::gelu_tanh:
      return simd::Activation::gelu_tanh;
    default:
      return simd::Activation::relu_squared;
  }
}

constexpr int64_t worthwhile_elements = 16384;

}  // namespace

void Activation::forward(Stream& stream, const ActivationForward& a) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "activation_forward", 0, {a.input, a.bias, a.output}, [=, &simd] {
    simd::ActivationTask task;
    task.kind = kind_of(a.kind);
    task.columns = a.input.size(-1);
    task.input = a.input.data<float>(), task.bias = optional_data(a.bias), task.output = a.output.data<float>();
    team.split(a.input.rows(), 1, worthwhile_elements / std::max<int64_t>(1, task.columns),
               [&](int, int64_t begin, int64_t end) { simd.activation_forward(task, begin, end); });
  });
}

void Activation::backward(Stream& stream, const ActivationBackward& a) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const RowBlocks blocks(a.input.rows());
  const int64_t columns = a.input.size(-1);
  const Tensor partials =
      backend_.workspace(a.d_bias.defined() ? blocks.count * columns : 0, "partial bias sums of an activation backward");
  backend_.launch(stream, "activation_backward", 0, {a.input, a.bias, a.d_output, a.d_input, a.d_bias, partials}, [=, &simd] {
    simd::ActivationTask task;
    task.kind = kind_of(a.kind);
    task.columns = columns;
    task.input = a.input.data<float>(), task.bias = optional_data(a.bias);
    task.d_output = a.d_output.data<float>(), task.d_input = a.d_input.data<float>();
    float* sums = optional_data(partials);
    team.split(blocks.count, 1, 2, [&](int, int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        simd.activation_backward(task, blocks.begin(b), blocks.end(b), sums ? sums + b * columns : nullptr);
    });
    if (sums) add_partials(simd, team, sums, blocks.count, a.accumulate_bias, a.d_bias);
  });
}

void Activation::scaled_add(Stream& stream, const ScaledAdd& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "scaled_add", 0, {s.x, s.y}, [=, &simd] {
    team.split(s.y.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) {
      simd.scaled_add(s.x.data<float>(), s.y.data<float>(), static_cast<float>(s.alpha), s.accumulate, begin, end);
    });
  });
}

void Activation::dropout(Stream& stream, const ApplyDropout& d) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "dropout", 0, {d.in, d.out}, [=, &simd] {
    const simd::Dropout mask = dropout_of(d.mask, d.in.elements());
    team.split(d.in.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) {
      if (mask.active)
        simd.apply_dropout(mask, d.in.data<float>(), d.out.data<float>(), begin, end);
      else
        simd.scaled_add(d.in.data<float>(), d.out.data<float>(), 1.0f, false, begin, end);
    });
  });
}

}  // namespace dmuon::cpu
