// The command line of dmuon_train, and what it shares with those of the programs that use a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

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

// The parsed arguments, or the exit code after help, version or a usage error were printed.
template <class Arguments>
struct ParseResult {
  std::optional<Arguments> arguments;
  int exit_code = 0;
};
ParseResult<TrainArguments> parse_train_arguments(int argc, char** argv);

// --threads and --device of the programs that use a model on one rank.
void add_machine_options(CLI::App& app, int64_t& threads, std::string& device);

}  // namespace dmuon
