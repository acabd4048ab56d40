#include "dmuon/backend/kernels.h"

#include "dmuon/core/error.h"

namespace dmuon {

void MatrixKernels::product_sequence(Stream& stream, const ProductSequence& arguments) {
  const size_t count = arguments.steps.empty() ? 0 : arguments.steps.front().d.size();
  for (size_t i = 0; i < count; ++i)
    for (const BatchedProduct& step : arguments.steps) {
      BatchedProduct one = step;
      one.a = {step.a[i]}, one.b = {step.b[i]}, one.d = {step.d[i]};
      if (!step.c.empty()) one.c = {step.c[i]};
      if (!step.alphas.empty()) one.alphas = {step.alphas[i]};
      batched_product(stream, one);
    }
}

void OptimizerKernels::normalize(Stream&, const Normalize&) { throw DeviceError("this backend normalises matrices on the host"); }

}  // namespace dmuon
