// Which variant of the hot loops runs: chosen once, by the processor and the options.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/simd/table.h"

namespace dmuon::cpu {

// The names this processor can run, narrowest first: "baseline", "avx2", "avx512".
std::vector<std::string> supported_instruction_sets();

// "auto" is the widest supported one. Throws DeviceError naming what is supported.
const simd::Table& choose_instruction_set(const std::string& name);

}  // namespace dmuon::cpu
