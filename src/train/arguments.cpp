#include "train/arguments.h"

#include <CLI/CLI.hpp>

#include "dmuon/core/error.h"

namespace dmuon {
namespace {

template <class Arguments>
ParseResult<Arguments> parse(CLI::App& app, Arguments& arguments, int argc, char** argv) {
  app.set_version_flag("--version", "dmuon 0.1.0");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return {std::nullopt, code == 0 ? 0 : static_cast<int>(ExitCode::bad_input)};
  }
  return {arguments, 0};
}

}  // namespace

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
  return parse(app, arguments, argc, argv);
}

ParseResult<GenerateArguments> parse_generate_arguments(int argc, char** argv) {
  CLI::App app{"Continues a prompt with a trained model:\n  dmuon_generate --checkpoint runs/quickstart --prompt \"## \""};
  GenerateArguments arguments;
  app.add_option("--checkpoint", arguments.checkpoint,
                 "a step directory, a checkpoint directory or a run directory (its newest checkpoint)")
      ->required();
  auto* prompt = app.add_option("--prompt", arguments.prompt, "text to continue");
  app.add_option("--prompt-file", arguments.prompt_file, "file whose text is continued")->excludes(prompt);
  app.add_option("--tokens", arguments.options.tokens, "tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--temperature", arguments.options.temperature, "0 always takes the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", arguments.options.top_k, "choose among the k most likely tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-p", arguments.options.top_p, "choose among the smallest set with this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", arguments.options.seed, "seed of the sampling")->capture_default_str();
  app.add_option("--count", arguments.count, "number of texts")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_option("--threads", arguments.threads, "threads; 0: all processors this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--device", arguments.device, "auto (a GPU where there is one), cpu or cuda")->capture_default_str();
  return parse(app, arguments, argc, argv);
}

}  // namespace dmuon
