// A group of one whose memory is a device's.
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"

namespace dmuon {

// Stream operations run as kernels and copies of `backend` on its streams. `like`: a group of one for everything else, kept
// where `owned` is it. Both must outlive it.
std::unique_ptr<Communicator> make_single_device_communicator(Backend& backend, Communicator& like,
                                                              std::unique_ptr<Communicator> owned = nullptr);

}  // namespace dmuon
