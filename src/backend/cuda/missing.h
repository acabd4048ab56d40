// For kernels that do not exist yet.
#pragma once

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

[[noreturn]] inline void missing(const char* kernel) { throw DeviceError(text("the CUDA backend has no kernel ", kernel)); }

}  // namespace dmuon::cuda
