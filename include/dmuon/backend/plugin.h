// The versioned entry of a backend plug-in, a shared library opened at run time. The reference backend of the tests and
// the CUDA backend are such libraries, so that a machine without a device needs none of its libraries.
#pragma once

#include "dmuon/backend/backend.h"

namespace dmuon {

// Raised with every change of Backend, Stream, Tensor or the kernel structs.
inline constexpr int backend_plugin_version = 4;

struct BackendPlugin {
  int version;       // backend_plugin_version of the headers the plug-in was built with
  const char* name;  // "reference", "cuda"
  // Returns an owned backend; throws typed errors across the library boundary (same compiler and C++ library).
  Backend* (*make)(const BackendOptions& options);
};

}  // namespace dmuon

// Every plug-in defines: extern "C" const dmuon::BackendPlugin* dmuon_backend_entry();
