#include "train/devices.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "dmuon/backend/device.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"
#include "train/visible_devices.h"

namespace dmuon {
namespace {

// Directory of the library this code is in.
Path library_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&choose_device), &info) == 0 || info.dli_fname == nullptr) return ".";
  return Path(info.dli_fname).parent_path();
}

// Null unless the environment names a plug-in; an empty name is none.
const char* plugin_override() {
  const char* named = std::getenv("DMUON_CUDA_PLUGIN");
  return named != nullptr && *named != '\0' ? named : nullptr;
}

Path cuda_plugin() { return plugin_override() != nullptr ? Path(plugin_override()) : library_directory() / "libdmuon_cuda.so"; }

bool is_there(const Path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::unique_ptr<Backend> open_cuda(const BackendOptions& options) {
  const Path plugin = cuda_plugin();
  if (!is_there(plugin))
    throw DeviceError(plugin_override() != nullptr
                          ? text("the file ", plugin.string(), " that DMUON_CUDA_PLUGIN names is missing")
                          : text("this build has no CUDA backend (", plugin.string(), " is missing): build on a machine with nvcc"));
  std::unique_ptr<Backend> backend = open_backend_plugin(plugin.string(), options);
  // Any backend's file would load, and a run on the plain loops of another one is as good as stuck.
  if (backend->name() != "cuda")
    throw DeviceError(text(plugin.string(), " is the plug-in of the backend \"", backend->name(), "\", not of \"cuda\"",
                           plugin_override() != nullptr ? "; DMUON_CUDA_PLUGIN names it: unset that, or name libdmuon_cuda.so" : ""));
  return backend;
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
  ChosenDevice chosen{make_cpu_backend(options), "", why_not_cuda};
  chosen.found = line_of(*chosen.backend);
  if (!why_not_cuda.empty()) chosen.found += text(" (no GPU: ", why_not_cuda, ")");
  return chosen;
}

// What a rank has chosen, as the others learn it.
struct RankDevice {
  std::string kind, identity, why_not_cuda;  // the backend's name; of a backend with a device of its own which one
};

std::vector<RankDevice> devices_of_ranks(Communicator& world, const ChosenDevice& chosen) {
  const DeviceBackend* device = device_of(*chosen.backend);
  Json mine = Json::object();
  mine.set("kind", chosen.backend->name());
  mine.set("identity", device != nullptr ? device->identity() : "");
  mine.set("why_not_cuda", chosen.why_not_cuda);
  std::vector<RankDevice> ranks;
  for (const std::string& entry : world.all_gather_text(mine.dump())) {
    const Json theirs = parse_json(entry, "device of a rank");
    ranks.push_back({theirs.at("kind").as_string(), theirs.at("identity").as_string(), theirs.at("why_not_cuda").as_string()});
  }
  return ranks;
}

// Why these ranks cannot train together on the devices they have chosen; empty where they can.
std::string without_own_device(const Communicator& world, const std::vector<RankDevice>& ranks) {
  const auto name = [&](int rank) { return text("rank ", rank, " on ", world.host(rank)); };
  std::map<std::string, int> owners;
  for (int rank = 0; rank < world.size(); ++rank) {
    const RankDevice& mine = ranks[static_cast<size_t>(rank)];
    for (int other = 0; other < world.size(); ++other) {
      const RankDevice& theirs = ranks[static_cast<size_t>(other)];
      if (theirs.kind == mine.kind || theirs.kind != "cuda") continue;
      return text(name(other), " has a GPU, ", name(rank), " has none", mine.why_not_cuda.empty() ? "" : ": ", mine.why_not_cuda);
    }
    if (mine.identity.empty()) continue;
    const auto [owner, fresh] = owners.emplace(world.host(rank) + " " + mine.identity, rank);
    if (!fresh)
      return text(
          "ranks ", owner->second, " and ", rank, " on ", world.host(rank), " use one GPU (", mine.identity,
          "): start at most one rank per GPU; CUDA_VISIBLE_DEVICES may be unset or the same for all ranks of a host, which then share "
          "out what it lists, or leave every rank a GPU of its own");
  }
  return "";
}

// The number, among the GPUs that this rank sees, of the one that it takes. Collective.
int share_of(Communicator& world) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<VisibleDevices> ranks;
  for (const std::string& told : world.all_gather_text(list == nullptr ? "" : text('=', list)))
    ranks.push_back({world.host(static_cast<int>(ranks.size())), told.empty() ? std::nullopt : std::optional(told.substr(1))});
  return share_out_devices(ranks)[static_cast<size_t>(world.rank())];
}

ChosenDevice choose_automatically(const BackendOptions& options) {
  if (plugin_override() == nullptr && !driver_is_there()) return use_cpu(options, "there is no NVIDIA driver");
  if (plugin_override() == nullptr && !is_there(cuda_plugin())) return use_cpu(options, "this build has no CUDA backend");
  try {
    ChosenDevice chosen{open_cuda(options), "", ""};
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
    throw ConfigError(text("device \"", device, R"(": expected "auto", "cpu", "cuda" or "reference")"));
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

ChosenDevice choose_device_together(Communicator& world, const std::string& device, BackendOptions options) {
  if (world.size() > 1) options.device = share_of(world);
  ChosenDevice chosen;
  agreed(world, [&] { chosen = choose_device(device, options); });
  if (world.size() == 1) return chosen;
  const std::vector<RankDevice> ranks = devices_of_ranks(world, chosen);
  const std::string problem = without_own_device(world, ranks);
  if (problem.empty()) return chosen;
  if (device != "auto") throw AgreedError(ExitCode::device, problem);
  agreed(world, [&] { chosen = use_cpu(options, problem); });
  return chosen;
}

}  // namespace dmuon
