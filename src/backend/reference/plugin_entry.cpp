#include "backend/reference/reference_backend.h"
#include "dmuon/backend/plugin.h"

extern "C" const dmuon::BackendPlugin* dmuon_backend_entry() {
  static const dmuon::BackendPlugin plugin{
      {dmuon::backend_plugin_version, sizeof(dmuon::BackendPlugin), DMUON_INTERFACE},
      "reference",
      [](const dmuon::BackendOptions& options) -> dmuon::Backend* { return new dmuon::reference::ReferenceBackend(options); }};
  return &plugin;
}
