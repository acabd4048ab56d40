#include "core/plugin_file.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

const PluginIdentity& open_plugin_file(const std::string& path, const PluginKind& kind) {
  // An absolute path keeps dlopen from searching elsewhere.
  void* library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    throw DeviceError(text(kind.name, ' ', path, " cannot be opened: ", cause ? cause : "unknown cause"));
  }
  using Entry = const PluginIdentity* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kind.entry));
  if (entry == nullptr) throw DeviceError(text(path, " is not a ", kind.name, ": it exports no ", kind.entry));
  const PluginIdentity* found = entry();
  const auto refuse = [&](const std::string& cause) {
    throw DeviceError(text(kind.name, ' ', path, " was built for ", cause, "; build both from the same sources"));
  };
  // In this order: what follows the version means what it should only where the version is the same.
  if (found == nullptr || found->version != kind.version)
    refuse(text("plug-in version ", found ? found->version : 0, ", this library needs version ", kind.version));
  if (found->size != kind.size) refuse(text("a table of ", found->size, " bytes, this library has one of ", kind.size));
  if (found->interface == nullptr || std::strcmp(found->interface, DMUON_INTERFACE) != 0)
    refuse(text("the interface ", found->interface ? found->interface : "(none)", ", this library has ", DMUON_INTERFACE,
                ": headers or compiler differ"));
  return *found;
}

}  // namespace dmuon
