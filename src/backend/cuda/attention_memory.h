// What kernels of attention need of a device, so that one that has too little is named before the runtime refuses the launch.
#pragma once

#include "backend/cuda/cuda_error.h"

namespace dmuon::cuda {

// DeviceError with the head's width and the remedy unless a block of the current device can have the shared memory of `how`. Heads
// of at most 64 in float32, and of at most 128 in bfloat16, need no more than every supported device has; wider ones need a
// device with the 163 KiB of sm_80 or more.
void require_attention_memory(const Launch& how, int head_width, bool bfloat16);

}  // namespace dmuon::cuda
