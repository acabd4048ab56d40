// What a backend with a device of its own can say beyond Backend. Host backends have none of it.
#pragma once

#include <cstdint>
#include <string>

#include "dmuon/backend/backend.h"

namespace dmuon {

// Bytes of the device's memory. Tensors live in blocks that are a little larger than they; freed blocks stay reserved for the
// next tensor of their size. In a shape-only pass the same is counted without a device.
struct DeviceMemory {
  int64_t in_use = 0, peak_in_use = 0;      // blocks that hold tensors
  int64_t reserved = 0, peak_reserved = 0;  // and those kept for reuse: what this process takes from the device
  int64_t free = 0, total = 0;              // as the driver says; 0 in a shape-only pass
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend();
  // Equal in two processes of a host exactly when they use the same device.
  virtual std::string identity() const = 0;
  // "NVIDIA H200 (sm_90, 139 GiB), driver 13.0"
  virtual std::string summary() const = 0;
  virtual DeviceMemory memory() const = 0;
};

// Null for backends without a device of their own.
const DeviceBackend* device_of(const Backend& backend);

}  // namespace dmuon
