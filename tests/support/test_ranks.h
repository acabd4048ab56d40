// The ranks of a test on the device of the test: tensors of the CUDA backend travel through NCCL.
#pragma once

#include <memory>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/device_communicator.h"
#include "support/test_device.h"

namespace dmuon::testing {

// A backend for this rank: each has a device of its own where the test runs on devices.
inline std::unique_ptr<Backend> make_test_backend_of(const Communicator& world, BackendOptions options = {}) {
  options.device = world.rank();
  return make_test_backend(options);
}

// `world` with collectives on the backend's memory; both must outlive it.
class TestRanks {
 public:
  TestRanks(Backend& backend, Communicator& world) : world_(world), devices_(make_device_communicator(backend, world)) {}
  Communicator& all() { return devices_ ? *devices_ : world_; }

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> devices_;
};

}  // namespace dmuon::testing
