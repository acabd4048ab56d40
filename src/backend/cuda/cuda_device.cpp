#include "backend/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <charconv>
#include <cstdlib>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

// What the process was told about devices, for messages.
std::string visible_devices() {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  return list == nullptr ? "" : text(" (CUDA_VISIBLE_DEVICES is \"", list, "\")");
}

int count_devices(int driver) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw DeviceError(text("the NVIDIA driver finds no device", visible_devices(), "; see nvidia-smi, or use \"device\": \"cpu\""));
  // With a driver that is too old the runtime reports the same error as without one.
  if (status == cudaErrorInsufficientDriver && driver == 0)
    throw DeviceError("there is no NVIDIA driver (libcuda.so.1); install one, or use \"device\": \"cpu\"");
  if (status == cudaErrorInsufficientDriver)
    throw DeviceError(text("the NVIDIA driver is too old: it supports CUDA ", version_text(driver), ", this build needs CUDA ",
                           version_text(CUDART_VERSION), "; update the driver or build with an older CUDA toolkit"));
  check(status, "no CUDA device can be used");
  return count;
}

std::string identity_of(const cudaDeviceProp& properties) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out = "GPU-";
  for (const char byte : properties.uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    out += digits[value / 16], out += digits[value % 16];
  }
  return out;
}

}  // namespace

std::string DeviceDescription::architecture() const { return text("sm_", major, minor); }

std::string version_text(int version) { return text(version / 1000, '.', version % 1000 / 10); }

std::string DeviceDescription::summary() const {
  return text(name, " (", architecture(), ", ", memory >> 30, " GiB), driver ", version_text(driver));
}

bool runs_on(std::string_view architectures, int major, int minor) {
  const int device = 10 * major + minor;
  while (!architectures.empty()) {
    const size_t end = std::min(architectures.find(','), architectures.size());
    const std::string_view entry = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    int built = 0;
    const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), built);
    if (error != std::errc()) continue;
    const std::string_view suffix(rest, static_cast<size_t>(entry.data() + entry.size() - rest));
    const bool specific = !suffix.empty() && suffix.front() != '-';  // "90a" runs on that architecture only
    const bool real = !suffix.ends_with("-virtual"), intermediate = !suffix.ends_with("-real");
    if (built == device || (!specific && real && built / 10 == major && built <= device) || (!specific && intermediate && built <= device))
      return true;
  }
  return false;
}

DeviceDescription open_device(int index) {
  // Read when CUDA is initialised, which the next call does. Streams beyond the number of queues share one, where work that waits for
  // another process holds up work that has nothing to do with it; the default is 8, and 32 the most. What is set already stays.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  DeviceDescription found;
  cudaDriverGetVersion(&found.driver);  // leaves 0 without a driver
  const int count = count_devices(found.driver);
  if (index < 0 || index >= count)
    throw DeviceError(text("CUDA device ", index, " was asked for, but this process may use ", count, visible_devices(),
                           "; start at most one rank per GPU of a host"));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), text("properties of CUDA device ", index));
  found.index = index;
  found.name = properties.name;
  found.major = properties.major, found.minor = properties.minor;
  found.multiprocessors = properties.multiProcessorCount;
  found.memory = static_cast<int64_t>(properties.totalGlobalMem);
  found.identity = identity_of(properties);
  if (!runs_on(DMUON_CUDA_ARCHITECTURES, found.major, found.minor))
    throw DeviceError(text("CUDA device ", index, ", ", found.name, ", is of architecture ", found.architecture(),
                           ", but this build has kernels for ", DMUON_CUDA_ARCHITECTURES,
                           " only; configure with -DDMUON_CUDA_ARCHITECTURES=", found.major, found.minor));
  check(cudaSetDevice(index), text("CUDA device ", index, ", ", found.name));
  // The first call that needs a context: a device that is lost, or lent exclusively to another process, says so here.
  check(cudaFree(nullptr), text("CUDA device ", index, ", ", found.name, " cannot be used"));
  return found;
}

}  // namespace dmuon::cuda
