#include "dmuon/backend/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::unique_ptr<Backend> open_backend_plugin(const std::string& path, const BackendOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw DeviceError(text("backend plug-in ", path, " is missing; build it or correct the path"));
  // An absolute path keeps dlopen from searching elsewhere. Never closed: tensors and errors made by the plug-in may
  // outlive its backend.
  void* library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    throw DeviceError(text("backend plug-in ", path, " cannot be opened: ", cause ? cause : "unknown cause"));
  }
  using Entry = const BackendPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "dmuon_backend_entry"));
  if (entry == nullptr) throw DeviceError(text(path, " is not a backend plug-in: it exports no dmuon_backend_entry"));
  const BackendPlugin* plugin = entry();
  const int version = plugin ? plugin->version : 0;
  if (version != backend_plugin_version)
    throw DeviceError(text("backend plug-in ", path, " was built for plug-in version ", version, ", this library needs version ",
                           backend_plugin_version, "; build both from the same sources"));
  return std::unique_ptr<Backend>(plugin->make(options));
}

}  // namespace dmuon
