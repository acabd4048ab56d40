#include "support/test_device.h"

#include <cstdlib>
#include <string>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::testing {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool test_device_is_cuda() {
  const std::string device = environment("DMUON_TEST_DEVICE");
  if (!device.empty() && device != "cpu" && device != "cuda")
    throw ConfigError(text("DMUON_TEST_DEVICE must be \"cpu\" or \"cuda\", found \"", device, "\""));
  return device == "cuda";
}

bool test_device_is_guarded() { return environment("DMUON_TEST_GUARDED") == "1"; }

std::unique_ptr<Backend> make_test_backend(const BackendOptions& options) {
  if (!test_device_is_cuda()) return make_cpu_backend(options);
  const std::string plugin = environment("DMUON_CUDA_PLUGIN");
  if (plugin.empty()) throw ConfigError("DMUON_TEST_DEVICE=cuda needs DMUON_CUDA_PLUGIN, the path of the plug-in to test");
  BackendOptions exact = options;
  if (options.mode == HostMode::normal && test_device_is_guarded()) exact.mode = HostMode::guarded;
  return open_backend_plugin(plugin, exact);
}

}  // namespace dmuon::testing
