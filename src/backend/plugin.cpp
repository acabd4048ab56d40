#include "dmuon/backend/plugin.h"

#include <filesystem>

#include "core/plugin_file.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::unique_ptr<Backend> open_backend_plugin(const std::string& path, const BackendOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw DeviceError(text("backend plug-in ", path, " is missing; build it or correct the path"));
  const PluginIdentity& table =
      open_plugin_file(path, {"backend plug-in", "dmuon_backend_entry", backend_plugin_version, sizeof(BackendPlugin)});
  return std::unique_ptr<Backend>(reinterpret_cast<const BackendPlugin&>(table).make(options));
}

}  // namespace dmuon
