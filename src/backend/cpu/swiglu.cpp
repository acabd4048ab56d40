#include "backend/cpu/cpu_backend.h"

namespace dmuon::cpu {
namespace {

constexpr int64_t worthwhile_elements = 16384;

}  // namespace

void Activation::swiglu_forward(Stream& stream, const SwiGluForward& f) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "swiglu_forward", 0, {f.gate, f.up, f.output}, [=, &simd] {
    simd::SwiGluTask task;
    task.gate = f.gate.data<float>(), task.up = f.up.data<float>(), task.output = f.output.data<float>();
    team.split(f.gate.elements(), 64, worthwhile_elements, [&](int, int64_t begin, int64_t end) { simd.swiglu_forward(task, begin, end); });
  });
}

void Activation::swiglu_backward(Stream& stream, const SwiGluBackward& b) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "swiglu_backward", 0, {b.gate, b.up, b.d_output, b.d_gate, b.d_up}, [=, &simd] {
    simd::SwiGluTask task;
    task.gate = b.gate.data<float>(), task.up = b.up.data<float>(), task.d_output = b.d_output.data<float>();
    task.d_gate = b.d_gate.data<float>(), task.d_up = b.d_up.data<float>();
    team.split(b.gate.elements(), 64, worthwhile_elements,
               [&](int, int64_t begin, int64_t end) { simd.swiglu_backward(task, begin, end); });
  });
}

}  // namespace dmuon::cpu
