#include "train/arguments.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"

namespace dmuon {

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", "dmuon 0.1.0");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::bad_input);
  }
  return std::nullopt;
}

void add_machine_options(CLI::App& app, int64_t& threads, std::string& device) {
  app.add_option("--threads", threads, "threads; 0: all processors this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--device", device, "auto (a GPU where there is one), cpu or cuda")->capture_default_str();
}

int exit_code_of(const std::function<void()>& run) {
  try {
    run();
    return static_cast<int>(ExitCode::done);
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    log_error(error.what());
    return static_cast<int>(ExitCode::device);
  }
}

ParseResult<TrainArguments> parse_train_arguments(int argc, char** argv) {
  CLI::App app{
      "Trains a model from one JSON file, alone or under mpirun:\n"
      "  dmuon_train --config configs/quickstart.json --set training.steps=100\n"
      "  mpirun --oversubscribe -np 4 dmuon_train --config configs/quickstart.json\n"
      "The same command again resumes the run. Keys: docs/configuration.md.\n"
      "Exit codes: 0 done, 2 bad input, 3 not finite, 4 communication, 5 storage, 6 device, 75 stopped after saving."};
  TrainArguments arguments;
  app.add_option("--config", arguments.configuration, "configuration file (JSON)")->required();
  app.add_option("--set", arguments.overrides, "override one key, e.g. optimizer.matrix.learning_rate=0.01; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--resume", arguments.resume, "auto: newest checkpoint of the output directory if there is one; never; must; or a path")
      ->capture_default_str();
  app.add_option("--trace", arguments.trace,
                 "write a timeline of all ranks to this file: compute, collectives and waits, for ui.perfetto.dev; of a long run the end");
  app.add_flag("--print-config", arguments.print_configuration, "print the resolved configuration and stop");
  app.add_flag("--dry-run", arguments.dry_run, "print sizes, routing, plan and memory without training, and stop");
  app.add_option("--ranks", arguments.dry_run_ranks, "with --dry-run: plan for this many ranks")->check(CLI::Range(1, 1 << 20));
  if (const auto code = parse_command_line(app, argc, argv)) return {std::nullopt, *code};
  if (arguments.dry_run_ranks > 0 && !arguments.dry_run) {
    std::fprintf(stderr,
                 "--ranks %d is for --dry-run, which plans for ranks that are not there; start them with mpirun -np %d dmuon_train ...\n",
                 arguments.dry_run_ranks, arguments.dry_run_ranks);
    return {std::nullopt, static_cast<int>(ExitCode::bad_input)};
  }
  return {arguments, 0};
}

}  // namespace dmuon
