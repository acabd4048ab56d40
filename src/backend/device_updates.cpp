#include "dmuon/backend/device_updates.h"

namespace dmuon {

DeviceUpdates::~DeviceUpdates() = default;

DeviceUpdates* device_updates(Backend& backend) { return dynamic_cast<DeviceUpdates*>(&backend.optimizer()); }

}  // namespace dmuon
