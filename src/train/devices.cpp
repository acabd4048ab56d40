#include "train/devices.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "dmuon/backend/device.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"

namespace dmuon {
namespace {

// Directory of the library this code is in.
Path library_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&choose_device), &info) == 0 || info.dli_fname == nullptr) return ".";
  return Path(info.dli_fname).parent_path();
}

const char* plugin_override() { return std::getenv("DMUON_CUDA_PLUGIN"); }

Path cuda_plugin() { return plugin_override() != nullptr ? Path(plugin_override()) : library_directory() / "libdmuon_cuda.so"; }

// The launcher may have given every rank a list of its own.
bool sees_one_device() {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  return list != nullptr && *list != '\0' && std::string(list).find(',') == std::string::npos;
}

bool is_there(const Path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::unique_ptr<Backend> open_cuda(BackendOptions options) {
  const Path plugin = cuda_plugin();
  if (!is_there(plugin))
    throw DeviceError(plugin_override() != nullptr
                          ? text("the file ", plugin.string(), " that DMUON_CUDA_PLUGIN names is missing")
                          : text("this build has no CUDA backend (", plugin.string(), " is missing): build on a machine with nvcc"));
  if (sees_one_device()) options.device = 0;
  return open_backend_plugin(plugin.string(), options);
}

std::string line_of(const Backend& backend) {
  const DeviceBackend* device = device_of(backend);
  return text("device: ", device != nullptr && !backend.shape_only() ? device->summary() : backend.information().device);
}

// Asked before the plug-in with its libraries is opened, because most machines without a GPU have no driver either.
bool driver_is_there() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

ChosenDevice use_cpu(const BackendOptions& options, const std::string& why_not_cuda) {
  ChosenDevice chosen{make_cpu_backend(options), ""};
  chosen.found = line_of(*chosen.backend);
  if (!why_not_cuda.empty()) chosen.found += text(" (no GPU: ", why_not_cuda, ")");
  return chosen;
}

ChosenDevice choose_automatically(const BackendOptions& options) {
  if (plugin_override() == nullptr && !driver_is_there()) return use_cpu(options, "there is no NVIDIA driver");
  if (plugin_override() == nullptr && !is_there(cuda_plugin())) return use_cpu(options, "this build has no CUDA backend");
  try {
    ChosenDevice chosen{open_cuda(options), ""};
    chosen.found = line_of(*chosen.backend);
    return chosen;
  } catch (const DeviceError& error) {
    return use_cpu(options, error.what());
  }
}

}  // namespace

ChosenDevice choose_device(const std::string& device, const BackendOptions& options) {
  if (device == "auto") return choose_automatically(options);
  if (device == "cpu") return use_cpu(options, "");
  ChosenDevice chosen;
  if (device == "reference")
    chosen.backend = open_backend_plugin((library_directory() / "libdmuon_reference.so").string(), options);
  else if (device == "cuda")
    chosen.backend = open_cuda(options);
  else
    throw DeviceError(text("device \"", device, R"(": use "auto", "cpu" or "cuda")"));
  chosen.found = line_of(*chosen.backend);
  return chosen;
}

std::string describe_device_memory(const Backend& backend) {
  const DeviceBackend* device = device_of(backend);
  if (device == nullptr) return "";
  const DeviceMemory memory = device->memory();
  const double spare =
      memory.peak_reserved > 0 ? 1.0 - static_cast<double>(memory.peak_in_use) / static_cast<double>(memory.peak_reserved) : 0.0;
  return text("GPU memory at most ", format_bytes(memory.peak_in_use), " in tensors, ", format_bytes(memory.peak_reserved),
              " taken from the device (", format_number(100.0 * spare, 0), " % for reuse), ", format_bytes(memory.free), " of ",
              format_bytes(memory.total), " free");
}

int rank_on_host(const Communicator& world) {
  int before = 0;
  for (int rank = 0; rank < world.rank(); ++rank) before += world.host(rank) == world.host(world.rank());
  return before;
}

void require_own_devices(Communicator& world, const Backend& backend) {
  if (world.size() == 1) return;
  const DeviceBackend* device = device_of(backend);
  const std::string mine = text(backend.name(), ' ', device != nullptr ? device->identity() : "");
  const std::vector<std::string> all = world.all_gather_text(mine);
  const auto kind = [](const std::string& entry) { return entry.substr(0, entry.find(' ')); };
  std::map<std::string, int> owners;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& entry = all[static_cast<size_t>(rank)];
    if (kind(entry) != kind(all[0]))
      throw AgreedError(ExitCode::device,
                        text("rank 0 on ", world.host(0), " has chosen device ", kind(all[0]), ", rank ", rank, " on ", world.host(rank),
                             " ", kind(entry), R"(; set "device" to "cuda" to see why a GPU is not used, or to "cpu")"));
    if (entry == kind(entry) + " ") continue;
    const auto [owner, fresh] = owners.emplace(world.host(rank) + " " + entry, rank);
    if (!fresh)
      throw AgreedError(
          ExitCode::device,
          text("ranks ", owner->second, " and ", rank, " on ", world.host(rank), " use one GPU (", entry.substr(entry.find(' ') + 1),
               "): start at most one rank per GPU, with CUDA_VISIBLE_DEVICES unset or different for every rank"));
  }
}

}  // namespace dmuon
