#include "train/arguments.h"

#include <cstdio>

#include "dmuon/core/error.h"
#include "train/command_line.h"

namespace dmuon {

void add_machine_options(CLI::App& app, int64_t& threads, std::string& device) {
  app.add_option("--threads", threads, "threads; 0: all processors this process may use")
      ->check(integer_between(0, 4096))
      ->capture_default_str();
  app.add_option("--device", device, "auto (a GPU where there is one), cpu or cuda")->capture_default_str();
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
  app.add_option("--ranks", arguments.dry_run_ranks, "with --dry-run: plan for this many ranks")->check(integer_between(1, 1 << 20));
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
