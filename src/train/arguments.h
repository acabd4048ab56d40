// The command lines of dmuon_train and dmuon_generate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dmuon/train/generator.h"

namespace dmuon {

struct TrainArguments {
  std::string configuration;           // --config
  std::vector<std::string> overrides;  // --set key=value
  std::string resume = "auto";         // auto, never, must or a path
  std::string trace;                   // file of --trace; empty: none
  bool print_configuration = false;
  bool dry_run = false;
  int dry_run_ranks = 0;  // ranks to plan for in a dry run; 0: those of the job
};

struct GenerateArguments {
  std::string checkpoint;
  std::string prompt;
  std::string prompt_file;
  int64_t count = 1;
  int64_t threads = 0;
  std::string device = "auto";
  GenerationOptions options;
};

// The parsed arguments, or the exit code after help, version or a usage error were printed.
template <class Arguments>
struct ParseResult {
  std::optional<Arguments> arguments;
  int exit_code = 0;
};
ParseResult<TrainArguments> parse_train_arguments(int argc, char** argv);
ParseResult<GenerateArguments> parse_generate_arguments(int argc, char** argv);

}  // namespace dmuon
