#include "backend/cpu/cpu_backend.h"

#include <cmath>
#include <fstream>

#include "backend/cpu/instruction_set.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon::cpu {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options) : HostBackend(options), simd_(choose_instruction_set(options.instruction_set)) {
  if (options.threads < 1) throw DeviceError(text("threads = ", options.threads, ": the CPU backend needs at least one thread"));
  // The library always uses the widest set it knows.
  if (simd_.name == supported_instruction_sets().back()) library_gemm_ = make_library_gemm();
}

// What the kernels run on: without OpenMP everything runs on the caller, whatever was asked for.
static int usable_threads([[maybe_unused]] int asked) {
#ifdef _OPENMP
  return asked;
#else
  return 1;
#endif
}

BackendInformation CpuBackend::information() const {
  return {processor_name(), simd_.name, library_gemm_ ? library_gemm_->name() : "built-in", usable_threads(options().threads)};
}

Tensor CpuBackend::workspace(int64_t floats, const char* label) {
  return floats > 0 ? allocate({floats}, DType::float32, MemoryCategory::workspace, label) : Tensor();
}

simd::Published published_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.dtype() == DType::bfloat16) return {nullptr, reinterpret_cast<uint16_t*>(tensor.data<bfloat16>())};
  return {tensor.data<float>(), nullptr};
}

simd::Dropout dropout_of(const DropoutMask& mask, int64_t elements) {
  simd::Dropout dropout;
  if (mask.probability <= 0.0 || mask.sequences < 1) return dropout;
  dropout.active = true;
  dropout.key = Random(mask.seed, RandomStream::dropout).key();
  dropout.threshold = static_cast<uint64_t>(std::ceil(mask.probability * 0x1p53));
  dropout.scale = static_cast<float>(1.0 / (1.0 - mask.probability));
  dropout.first_sequence = static_cast<uint64_t>(mask.first_sequence);
  dropout.elements_per_sequence = std::max<int64_t>(1, elements / mask.sequences);
  return dropout;
}

RowBlocks::RowBlocks(int64_t all_rows) : rows(all_rows) {
  constexpr int64_t most_blocks = 32, least_rows = 32;
  size = std::max(least_rows, (rows + most_blocks - 1) / most_blocks);
  count = std::max<int64_t>(1, (rows + size - 1) / size);
}

void add_partials(const simd::Table& simd, const Team& team, const float* partials, int64_t blocks, bool accumulate, const Tensor& out) {
  const int64_t columns = out.elements();
  team.split(columns, 64, 16384, [&](int, int64_t begin, int64_t end) {
    simd.add_partials(partials, blocks, columns, accumulate, out.data<float>(), begin, end);
  });
}

}  // namespace dmuon::cpu

namespace dmuon {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) { return std::make_unique<cpu::CpuBackend>(options); }

}  // namespace dmuon
