#include "train/banner.h"

#include <algorithm>
#include <chrono>

#include "dmuon/core/text.h"

namespace dmuon {

double measure_gemm_flops(Backend& backend) {
  constexpr int64_t n = 1024;
  Stream& stream = backend.compute_stream();
  Tensor a = backend.allocate(Shape{n, n}, DType::float32, MemoryCategory::workspace, "GEMM peak");
  Tensor b = backend.allocate(Shape{n, n}, DType::float32, MemoryCategory::workspace, "GEMM peak");
  Tensor c = backend.allocate(Shape{n, n}, DType::float32, MemoryCategory::workspace, "GEMM peak");
  std::vector<float> values(static_cast<size_t>(n * n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(Random(1, RandomStream::test).uniform(i) - 0.5);
  backend.copy_from_host(stream, values.data(), a);
  backend.copy_from_host(stream, values.data(), b);
  double best = 1e30;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    backend.matrix().multiply(stream, {.a = a, .b = b, .c = c, .bias = {}});
    stream.synchronize();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(n * n * n) / best;
}

std::string banner(const Configuration& configuration, const std::string& world, const Backend& backend, int threads, double gemm_flops,
                   const Model& model, const TokenData& data, const RunRules& rules, const RunGrid& grid) {
  const BackendInformation device = backend.information();
  const StepShape shape = step_shape(configuration, grid.grid.ranks());
  const int64_t tokens = shape.global_batch * configuration.model.context_length;
  std::string out =
      text("dmuon ", configuration.name, "\n  job     ", world, ", ", threads, threads == 1 ? " thread" : " threads", " a rank\n  device  ",
           backend.name(), ": ", device.device, ", ", device.instruction_set, ", GEMM ", device.gemm, " at ",
           format_number(gemm_flops * 1e-9, 0), " GFLOP/s\n  model   ", configuration.model.family, ", ",
           format_count(model.inventory().elements()), " parameters, context ", configuration.model.context_length, ", vocabulary ",
           format_count(model.facts().vocabulary_size), "\n  data    ", format_count(data.training->tokens()), " training tokens");
  if (data.validation) out += text(", ", format_count(data.validation->tokens()), " for validation");
  out += text("\n  step    ", format_count(tokens), " tokens, ", shape.micro_batches,
              shape.micro_batches == 1 ? " micro-batch" : " micro-batches", "; ", format_count(configuration.training.steps),
              " steps = ", format_count(configuration.training.steps * tokens), " tokens\n  ranks   ",
              describe_distribution(configuration.distribution, model.inventory(), grid), "\n\n", rules.routing_table);
  return out;
}

}  // namespace dmuon
