#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/math.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {

// exponential() never is infinite: for a gate below -88 the quotient z / (1 + e) is within 1e-36 of zero, as silu is.
void swiglu_forward(const SwiGluTask& task, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t left = end - i;
    const Floats z = load_row(task.gate + i, left);
    store_row(task.output + i, z / (1.0f + exponential(-z)) * load_row(task.up + i, left), left);
  }
}

void swiglu_backward(const SwiGluTask& task, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t left = end - i;
    const Floats z = load_row(task.gate + i, left), up = load_row(task.up + i, left), d = load_row(task.d_output + i, left);
    const Floats e = exponential(-z), sigmoid = 1.0f / (1.0f + e), complement = e * sigmoid;
    const Floats silu = z * sigmoid;
    store_row(task.d_gate + i, d * up * (sigmoid + silu * complement), left);
    store_row(task.d_up + i, d * silu, left);
  }
}

}  // namespace dmuon::DMUON_SIMD
