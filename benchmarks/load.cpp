// Starting from a large sharded Hugging Face directory: memory beyond the model, and bytes that each rank reads.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/huggingface.h"
#include "support.h"
#include "train/agreement.h"
#include "train/huggingface.h"
#include "training.h"

namespace dmuon::bench {
namespace {

// Bytes of a line of /proc/self/status: "VmRSS:" now, "VmHWM:" at most since the last reset.
int64_t status_bytes(const std::string& line) {
  std::ifstream file("/proc/self/status");
  std::string word;
  int64_t kibibytes = 0;
  while (file >> word)
    if (word == line && file >> kibibytes) return kibibytes * 1024;
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

Json settings_for(double bytes, DType dtype) {
  Json settings = parse_json(R"({"family": "qwen", "heads": 16, "key_value_heads": 4, "width": 1024, "feed_forward_width": 2816,
      "context_length": 128, "vocabulary_size": 32000, "tied_head": true, "layers": 1})",
                             "settings");
  const auto count = [&](int64_t layers) {
    settings.set("layers", layers);
    return static_cast<double>(find_family(models(), "qwen").make(settings)->facts().parameters * size_of(dtype));
  };
  const double one = count(1), layer = count(2) - one;
  settings.set("layers", std::max<int64_t>(1, 1 + static_cast<int64_t>(std::ceil((bytes - one) / layer))));
  return settings;
}

// A directory that goes with the benchmark. In memory where possible: the disk is not what is measured.
class Checkpoint {
 public:
  Checkpoint(Communicator& world, double bytes, DType dtype) : owner_(world.rank() == 0) {
    std::string made;
    agreed(world, [&] {
      if (owner_) made = make(bytes, dtype);
    });
    parent_ = world.broadcast_text(made, 0);
  }
  ~Checkpoint() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(parent_, ignored);
  }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  Path path() const { return parent_ / "model"; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path())) sum += static_cast<int64_t>(entry.file_size());
    return sum;
  }

 private:
  std::string make(double bytes, DType dtype) {
    const bool in_memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK | X_OK) == 0;
    std::string pattern = ((in_memory ? Path("/dev/shm") : std::filesystem::temp_directory_path()) / "dmuon-load-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw StorageError("no temporary directory");
    parent_ = pattern;
    const Json settings = settings_for(bytes, dtype);
    const ModelFamily& family = find_family(models(), "qwen");
    const std::unique_ptr<Model> model = family.make(settings);
    HuggingFaceExport request;
    request.directory = path();
    request.config = family.huggingface.config(settings);
    request.layout = family.huggingface.layout(settings);
    request.dtype = dtype;
    request.shard_bytes = 200'000'000;
    request.read = [&](const std::string& parameter, int64_t first, int64_t count, float* out) {
      fill_initial(*model->inventory().find(parameter), 1, first, count, out);
    };
    write_huggingface(request);
    return pattern;
  }
  bool owner_;
  Path parent_;
};

Json::Array run_on(const Arguments& arguments, double gigabytes, DType dtype, int64_t stage, World& job) {
  Communicator& world = job.communicator();
  const Checkpoint checkpoint(world, gigabytes * 1e9, dtype);
  const ModelImport import_model = huggingface_import(models());
  const Configuration configuration =
      parse_configuration(text(R"({"model": {"from": ")", checkpoint.path().string(), R"("}, "training": {"batch_tokens": 128},
                                   "distribution": {"stage": )",
                               stage, "}}"),
                          "dmuon_bench", {}, import_model);
  const std::unique_ptr<Backend> backend = make_cpu_backend({.mode = HostMode::normal, .threads = arguments.threads});
  ModelPlan plan = make_model(configuration, TokenData{}, models());
  const Inventory& inventory = plan.model->inventory();
  RunRules rules = make_rules(configuration.optimizer, inventory);
  const RunGrid grid = make_run_grid(configuration.distribution, world.size(), count_nodes(world));
  JobPlans plans = make_run_plans(configuration.distribution, inventory, rules.table, grid.grid);
  const int64_t before = status_bytes("VmRSS:");
  reset_peak();
  ShardedModel sharded(*backend, world, *plan.model, std::move(rules.table), std::move(plans),
                       sharded_options(configuration.distribution, inventory, grid.grid));
  const HuggingFaceReader reader(checkpoint.path(), find_family(models(), "qwen").huggingface.layout(plan.settings), inventory);
  const int64_t headers = reader.bytes_read();
  const auto start = std::chrono::steady_clock::now();
  agreed(world, [&] {
    sharded.fill_masters([&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
      reader.read(parameter.name, first, count, out);
    });
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t loaded = status_bytes("VmRSS:"), while_loading = status_bytes("VmHWM:");
  sharded.publish_all();
  sharded.wait_for_parameters();
  const int64_t peak = status_bytes("VmHWM:");
  int64_t owned = 0, largest = 0;
  for (const HeldPiece& held : sharded.held()) owned += held.piece.count * size_of(dtype);
  for (const ParameterDeclaration& parameter : inventory.parameters()) largest = std::max(largest, parameter.shape.elements() * 4);

  // The fullest rank in each column.
  const std::vector<double> mine = {static_cast<double>(reader.bytes_read() - headers),
                                    static_cast<double>(reader.bytes_read() - headers - owned),
                                    static_cast<double>(while_loading - loaded),
                                    static_cast<double>(backend->allocator().statistics().total.peak),
                                    static_cast<double>(peak - before),
                                    static_cast<double>(peak - before - backend->allocator().statistics().total.peak),
                                    seconds};
  const std::vector<double> most = world.all_reduce(mine, ReduceOperation::maximum);
  if (world.rank() != 0) return {};
  Json row = Json::object();
  row.set("ranks", world.size());
  row.set("stage", stage);
  row.set("checkpoint_bytes", checkpoint.bytes());
  row.set("read_bytes", static_cast<int64_t>(most[0]));
  row.set("read_beyond_owned_bytes", static_cast<int64_t>(most[1]));
  row.set("largest_tensor_bytes", largest);
  row.set("resident_only_while_loading_bytes", static_cast<int64_t>(most[2]));
  row.set("model_bytes", static_cast<int64_t>(most[3]));
  row.set("peak_resident_bytes", static_cast<int64_t>(most[4]));
  row.set("peak_beyond_model_bytes", static_cast<int64_t>(most[5]));
  row.set("seconds", most[6]);
  return {row};
}

Json::Array run(const Arguments& arguments) {
  const auto given = [&](const char* name, const char* otherwise) {
    const auto found = arguments.own.find(name);
    return found == arguments.own.end() ? std::string(otherwise) : found->second;
  };
  const double gigabytes = number_option("gigabytes", given("gigabytes", "1"), 0.01, 1000);
  const auto stage = static_cast<int64_t>(number_option("stage", given("stage", "2"), 1, 3));
  const std::string dtype = given("dtype", "float32");
  if (dtype != "float32" && dtype != "bfloat16") throw ConfigError("--dtype " + dtype + ": expected float32 or bfloat16");
  return run_job([&](World& job) { return run_on(arguments, gigabytes, dtype_from_name(dtype), stage, job); });
}

}  // namespace

Benchmark load_benchmark() {
  return {"load",
          "Memory and bytes read while a run starts from a sharded Hugging Face directory, alone or under mpirun",
          {{"gigabytes", "Size of the random checkpoint that is made in memory for it (1)"},
           {"stage", "distribution.stage (2)"},
           {"dtype", "Of the files: float32 or bfloat16"}},
          run};
}

}  // namespace dmuon::bench
