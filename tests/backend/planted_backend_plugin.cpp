// A plug-in that is not of this build, by what the build adds to version and size, or by another interface.
#include "dmuon/backend/plugin.h"

extern "C" const dmuon::BackendPlugin* dmuon_backend_entry() {
  static const dmuon::BackendPlugin plugin{
      {dmuon::backend_plugin_version + ADDED_VERSION, sizeof(dmuon::BackendPlugin) + ADDED_SIZE, DMUON_INTERFACE}, "wrong", nullptr};
  return &plugin;
}
