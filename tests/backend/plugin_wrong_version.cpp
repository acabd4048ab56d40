// A plug-in built for a version that this library is not.
#include "dmuon/backend/plugin.h"

extern "C" const dmuon::BackendPlugin* dmuon_backend_entry() {
  static const dmuon::BackendPlugin plugin{dmuon::backend_plugin_version + 41, "wrong", nullptr};
  return &plugin;
}
