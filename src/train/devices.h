// From the configuration's device name to a backend.
#pragma once

#include <memory>
#include <string>

#include "dmuon/backend/backend.h"

namespace dmuon {

// "auto" and "cpu": the CPU backend; "reference": the plug-in libdmuon_reference.so beside the program or the library.
// DeviceError names what is missing ("cuda" has no backend in this build).
std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options);

}  // namespace dmuon
