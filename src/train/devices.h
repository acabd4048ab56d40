// From the configuration's device name to a backend.
#pragma once

#include <memory>
#include <string>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"

namespace dmuon {

struct ChosenDevice {
  std::unique_ptr<Backend> backend;
  std::string found;         // a line for the log: which device, and where "auto" did not take a GPU, why
  std::string why_not_cuda;  // that reason alone; empty where a GPU was taken or not asked for
};

// "cpu": the CPU backend. "cuda": the plug-in libdmuon_cuda.so beside the library, or the file that the environment variable
// DMUON_CUDA_PLUGIN names (empty: none). "auto": CUDA where a device can be used, else the CPU. "reference": the plug-in
// libdmuon_reference.so beside the library. `options.device` is the GPU's number among those that this process sees
// (CUDA_VISIBLE_DEVICES).
// DeviceError names what is missing.
ChosenDevice choose_device(const std::string& device, const BackendOptions& options);
inline std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options) {
  return choose_device(device, options).backend;
}

// "GPU memory at most 1.2 GiB in tensors, 1.3 GiB taken from the device (8 % for reuse), 120 GiB of 139 GiB free"; "" for a
// backend without a device of its own.
std::string describe_device_memory(const Backend& backend);

// choose_device on every rank of a job, each with the GPU that train/visible_devices.h gives it instead of `options.device`, then
// agreed: with "auto" either every rank has a GPU of its own, or all use the CPU, and
// `found` says why; with "cuda" two ranks of a host on one GPU are an error, the same on every rank (AgreedError). Collective.
ChosenDevice choose_device_together(Communicator& world, const std::string& device, BackendOptions options);

}  // namespace dmuon
