// The command line of dmuon_train, and what all command lines share.
#pragma once

#include <functional>
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

// Parses with the options of `app`: nothing when the program may go on, or the exit code after help, version or a usage error were
// printed.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

// --threads and --device of the programs that use a model on one rank.
void add_machine_options(CLI::App& app, int64_t& threads, std::string& device);

// The exit code of `run`: 0, or that of the error it throws, which is logged.
int exit_code_of(const std::function<void()>& run);

}  // namespace dmuon
