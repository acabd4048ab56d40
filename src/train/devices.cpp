#include "train/devices.h"

#include <dlfcn.h>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Directory of the library this code is in.
Path library_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&make_backend), &info) == 0 || info.dli_fname == nullptr) return ".";
  return Path(info.dli_fname).parent_path();
}

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options) {
  if (device == "auto" || device == "cpu") return make_cpu_backend(options);
  if (device == "reference") return open_backend_plugin((library_directory() / "libdmuon_reference.so").string(), options);
  throw DeviceError(text("device \"", device, "\": this build has no such backend; use \"cpu\" or \"auto\""));
}

}  // namespace dmuon
