#include "dmuon/comm/device_communicator.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "comm/device/single_device.h"
#include "dmuon/backend/backend.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Beside the library this code is in, unless the environment names another.
std::filesystem::path plugin_path() {
  if (const char* named = std::getenv("DMUON_NCCL_PLUGIN"); named != nullptr && *named != '\0') return named;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&make_device_communicator), &info) == 0 || info.dli_fname == nullptr) return "libdmuon_nccl.so";
  return std::filesystem::path(info.dli_fname).parent_path() / "libdmuon_nccl.so";
}

const CommunicatorPlugin& open_plugin() {
  const std::filesystem::path path = plugin_path();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw DeviceError(text("several ranks on devices need the plug-in ", path.string(),
                           ", which is missing; build dmuon where NCCL's header and library are, or name the file in DMUON_NCCL_PLUGIN"));
  // Never closed: what it made may outlive its communicators.
  void* library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    throw DeviceError(text("NCCL plug-in ", path.string(), " cannot be opened: ", cause ? cause : "unknown cause"));
  }
  using Entry = const CommunicatorPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "dmuon_communicator_entry"));
  if (entry == nullptr) throw DeviceError(text(path.string(), " is not an NCCL plug-in: it exports no dmuon_communicator_entry"));
  const CommunicatorPlugin* plugin = entry();
  const int version = plugin ? plugin->version : 0;
  if (version != communicator_plugin_version)
    throw DeviceError(text("NCCL plug-in ", path.string(), " was built for plug-in version ", version, ", this library needs version ",
                           communicator_plugin_version, "; build both from the same sources"));
  return *plugin;
}

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(Backend& backend, Communicator& world) {
  if (backend.name() != "cuda" || backend.shape_only()) return nullptr;
  if (world.size() == 1) return make_single_device_communicator(backend, world);
  // Where one rank lacks the plug-in, nobody waits for it.
  const CommunicatorPlugin* plugin = nullptr;
  std::string failure;
  try {
    plugin = &open_plugin();
  } catch (const DeviceError& error) {
    failure = error.what();
  }
  world.agree(failure.empty(), failure, ExitCode::device);
  return std::unique_ptr<Communicator>(plugin->make(backend, world));
}

}  // namespace dmuon
