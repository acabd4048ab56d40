// A plug-in that is not of this build, by what the build adds to version and size, or by another interface.
#include "dmuon/comm/device_communicator.h"

extern "C" const dmuon::CommunicatorPlugin* dmuon_communicator_entry() {
  static const dmuon::CommunicatorPlugin plugin{
      {dmuon::communicator_plugin_version + ADDED_VERSION, sizeof(dmuon::CommunicatorPlugin) + ADDED_SIZE, DMUON_INTERFACE},
      "wrong",
      nullptr};
  return &plugin;
}
