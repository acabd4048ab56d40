// The device that tests of devices run on. A test case tagged [device] makes its backend here and nowhere else; CMake's
// dmuon_test_on_cuda registers a second run of such cases on the CUDA backend, whose kernels the stand-in of tests/cuda_on_host/
// executes on the host. Whatever only hosts have (guarded and deferred modes, instruction sets, numbers of threads) stays with
// make_cpu_backend, in cases without that tag.
#pragma once

#include <memory>

#include "dmuon/backend/backend.h"

namespace dmuon::testing {

// The CPU backend; with environment DMUON_TEST_DEVICE=cuda the plug-in that DMUON_CUDA_PLUGIN names, and with DMUON_TEST_GUARDED=1 every
// tensor in memory of exactly its size, so that whoever watches accesses sees its bounds. ConfigError for any other
// device, or without that path.
std::unique_ptr<Backend> make_test_backend(const BackendOptions& options = {});
// For tolerances and for what only one of the two promises.
bool test_device_is_cuda();
// Whether accesses are watched, which is slow: a few cases of each kind are enough.
bool test_device_is_guarded();

}  // namespace dmuon::testing
