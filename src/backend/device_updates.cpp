#include "dmuon/backend/device_updates.h"

namespace dmuon {

DeviceUpdates::~DeviceUpdates() = default;

DeviceUpdates* device_updates(Backend& backend) { return dynamic_cast<DeviceUpdates*>(&backend.optimizer()); }

bool orthogonalizes_in_float16(Backend& backend) {
  const DeviceUpdates* device = device_updates(backend);
  return device && device->orthogonalizes_in_float16();
}

}  // namespace dmuon
