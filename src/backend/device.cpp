#include "dmuon/backend/device.h"

namespace dmuon {

DeviceBackend::~DeviceBackend() = default;

const DeviceBackend* device_of(const Backend& backend) { return dynamic_cast<const DeviceBackend*>(&backend); }

}  // namespace dmuon
