// Which devices the stand-in shows.
//
// CUDA_ON_HOST_DEVICES: how many (default 16); CUDA_VISIBLE_DEVICES chooses from them as on a device;
// CUDA_ON_HOST_MEMORY: bytes of each (default 16 GiB).
#pragma once

#include <cstddef>

namespace cuda_on_host {

// Of the calling thread, among the visible ones.
int current_device();
int visible_devices();
size_t device_memory_bytes();

}  // namespace cuda_on_host
