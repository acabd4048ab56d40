// The versioned entry of a backend plug-in, a shared library opened at run time. The reference backend of the tests and
// the CUDA backend are such libraries, so that a machine without a device needs none of its libraries.
#pragma once

#include "dmuon/backend/backend.h"
#include "dmuon/core/plugin.h"

namespace dmuon {

// Raised with every change of this table. Changes of Backend, Stream, Tensor, the kernel structs and whatever else is shared show
// in the identity's interface.
inline constexpr int backend_plugin_version = 5;

struct BackendPlugin {
  PluginIdentity identity;
  const char* name;  // "reference", "cuda"
  // Returns an owned backend; throws typed errors across the library boundary (same compiler and C++ library).
  Backend* (*make)(const BackendOptions& options);
};

}  // namespace dmuon

// Every plug-in defines, in a file with DMUON_INTERFACE:
//   constexpr dmuon::BackendPlugin plugin{{dmuon::backend_plugin_version, sizeof plugin, DMUON_INTERFACE}, "name", &make};
//   extern "C" const dmuon::BackendPlugin* dmuon_backend_entry() { return &plugin; }
