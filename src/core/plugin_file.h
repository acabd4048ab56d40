// Opens plug-ins.
#pragma once

#include <string>

#include "dmuon/core/plugin.h"

namespace dmuon {

struct PluginKind {
  std::string name;   // "backend plug-in", for messages
  const char* entry;  // the C function that returns its table
  int version, size;  // of the table that this library knows
};

// The table, which begins with a PluginIdentity and is never unloaded: what the plug-in made may outlive everything else.
// DeviceError with file, cause and remedy when there is none, or not one of this build.
const PluginIdentity& open_plugin_file(const std::string& path, const PluginKind& kind);

}  // namespace dmuon
