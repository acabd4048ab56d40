#include "backend/cpu/instruction_set.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace baseline {
extern const simd::Table table;
}
namespace avx2 {
extern const simd::Table table;
}
namespace avx512 {
extern const simd::Table table;
}
}  // namespace dmuon

namespace dmuon::cpu {
namespace {

const simd::Table& table_of(const std::string& name) {
  if (name == "avx512") return avx512::table;
  return name == "avx2" ? avx2::table : baseline::table;
}

}  // namespace

std::vector<std::string> supported_instruction_sets() {
  std::vector<std::string> names{"baseline"};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) names.push_back("avx2");
  if (names.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    names.push_back("avx512");
  return names;
}

const simd::Table& choose_instruction_set(const std::string& name) {
  const std::vector<std::string> supported = supported_instruction_sets();
  if (name == "auto") return table_of(supported.back());
  for (const std::string& candidate : supported)
    if (candidate == name) return table_of(name);
  throw DeviceError(text("instruction set \"", name, "\": this processor runs ", join(supported, ", "),
                         "; choose one of these, or \"auto\" for the widest"));
}

}  // namespace dmuon::cpu
