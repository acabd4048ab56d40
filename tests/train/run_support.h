// Small runs of dmuon_train in a directory of their own.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/mpi_launch.h"

namespace dmuon::testing {

// How often a part occurs in a text.
inline size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// A directory that goes when the test ends, with a text to learn and a configuration of a model that trains in a blink.
class SmallRun {
 public:
  SmallRun() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dmuon-run-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    const Random random(11, RandomStream::test);
    std::string words;
    for (uint64_t i = 0; words.size() < 6000; ++i) words += text("word", random.below(40, i), i % 9 == 8 ? ".\n" : " ");
    write("text.txt", words);
    write("run.json", R"({
      "name": "small", "seed": 4,
      "model": {"layers": 2, "heads": 2, "width": 24, "context_length": 16, "dropout": 0.1},
      "data": {"train": [")" +
                          path("text.txt") + R"("], "tokenizer": "character"},
      "training": {"steps": 12, "batch_tokens": 96, "gradient_clip": 1.0, "replica_check_interval": 4},
      "optimizer": {"matrix": {"rule": "muon", "learning_rate": 0.02}, "auxiliary": {"rule": "adamw", "learning_rate": 0.002}},
      "distribution": {"cut_elements": 64},
      "communication": {"start_timeout_seconds": 60, "step_timeout_seconds": 30},
      "evaluation": {"interval": 6, "batch_size": 3},
      "sample": {"tokens": 0},
      "checkpoint": {"interval": 4, "keep": 10},
      "logging": {"interval": 1}})");
  }
  ~SmallRun() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  SmallRun(const SmallRun&) = delete;
  SmallRun& operator=(const SmallRun&) = delete;

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const { std::ofstream(path(name), std::ios::binary) << content; }

  // `arguments` follow --config; `environment` is "NAME=value ...". The run directory is `output` inside this one.
  Ended train(int ranks, const std::string& output, const std::string& arguments = "", const std::string& environment = "",
              int limit = 60) const {
    const std::string command =
        text(DMUON_TRAIN, " --config ", path("run.json"), " --set output=", path(output), " --set threads=1 ", arguments);
    const std::string prefix = environment.empty() ? "" : "env " + environment + " ";
    if (ranks == 1) return run_command(prefix + command, limit);
    return run_ranks_of(DMUON_MPIEXEC, ranks, prefix + command, limit);
  }

  // Key -> hash of every tensor in the newest (or given) checkpoint of a run.
  std::map<std::string, std::string> tensors(const std::string& output, int64_t step) const {
    std::string name = std::to_string(step);
    name = "step-" + std::string(8 - name.size(), '0') + name;
    const Json manifest = parse_json(read_file(path(output) + "/checkpoints/" + name + "/MANIFEST.json"), "manifest");
    std::map<std::string, std::string> hashes;
    for (const Json& entry : manifest.at("tensors").as_array()) hashes[entry.at("key").as_string()] = entry.at("hash").dump();
    if (hashes.empty()) throw CheckpointError("the manifest of " + name + " lists no tensors");
    return hashes;
  }

  // The metrics of a run without times.
  std::string metrics(const std::string& output) const {
    std::ifstream file(path(output) + "/metrics.jsonl");
    std::string all;
    for (std::string line; std::getline(file, line);) {
      const Json json = parse_json(line, "metrics line");
      for (const char* key : {"step", "tokens", "train_loss", "validation_loss", "learning_rate", "gradient_norm"})
        if (const Json* value = json.find(key)) all += text(key, "=", value->dump(), " ");
      all += "\n";
    }
    return all;
  }

 private:
  std::string directory_;
};

}  // namespace dmuon::testing
