// Finds a device that this build can use, or says why there is none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dmuon::cuda {

struct DeviceDescription {
  int index = 0;  // among those that this process may use (CUDA_VISIBLE_DEVICES)
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0;
  std::string identity;  // "GPU-7b2a...": equal in two processes exactly when they use the same device
  int driver = 0;        // the CUDA version the driver supports: 13000 is 13.0

  std::string architecture() const;  // "sm_90"
  std::string summary() const;       // "NVIDIA H200 (sm_90, 139 GiB), driver 13.0"
};

// "13.0" of 13000
std::string version_text(int version);

// Makes the device current for the calling thread. DeviceError with the reason and the remedy: no driver, a driver too old, no
// device, none of this number, an architecture that the kernels are not compiled for, a device that is busy or broken.
DeviceDescription open_device(int index);

// Whether code compiled for `architectures` ("80,90", as CMake's CUDA_ARCHITECTURES: "90" holds code for the device and an
// intermediate form that newer ones can compile, "90-real" only the first, "90-virtual" only the second) runs on a device.
bool runs_on(std::string_view architectures, int major, int minor);

}  // namespace dmuon::cuda
