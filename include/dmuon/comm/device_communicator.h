// Collectives on device memory: NCCL moves the data, an MPI communicator does everything else.
//
//   const std::unique_ptr<Communicator> devices = make_device_communicator(*backend, world);
//   Communicator& all = devices ? *devices : world;
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/plugin.h"

namespace dmuon {

class Backend;

// The ranks of `world` as a group whose stream operations take tensors and streams of `backend`, one device a rank. Ranks,
// hosts, nodes, deadlines and control operations are those of `world`, which must outlive it; groups split off it are of the
// same kind. Null where `world` serves: on host backends and in shape-only passes. Collective, blocking.
//
// What differs from the contract of Communicator:
// - All operations of all groups must be entered by one thread, in one order on all ranks: the thread that made this one
//   (CommunicationError else). NCCL needs it, as its kernels wait for each other on the device.
// - Reductions add in rank order here, too, in float32 for bfloat16 and float16: the terms travel, a kernel adds them. So
//   results have the bits of the CPU path. Large all-reduces of int8, int32, int64 and uint8, where order does not matter,
//   are NCCL's own.
// - Whether ranks entered different operations is seen only when one of them expires, or, with the environment variable
//   DMUON_CHECK_COLLECTIVES=1 (slow: every operation waits for all ranks), before each.
//
// A group of one needs no NCCL. For more, the plug-in libdmuon_nccl.so beside libdmuon is opened, or the file that the
// environment variable DMUON_NCCL_PLUGIN names. DeviceError names the file and the cause when it cannot be used, and ranks
// that share one device with the remedy.
std::unique_ptr<Communicator> make_device_communicator(Backend& backend, Communicator& world);

// The versioned entry of that plug-in. Raised with every change of this table; others show in the identity's interface.
inline constexpr int communicator_plugin_version = 2;

struct CommunicatorPlugin {
  PluginIdentity identity;
  const char* name;  // "nccl"
  // Returns an owned communicator; throws typed errors across the library boundary (same compiler and C++ library).
  Communicator* (*make)(Backend& backend, Communicator& world);
};

}  // namespace dmuon

// The plug-in defines: extern "C" const dmuon::CommunicatorPlugin* dmuon_communicator_entry();
