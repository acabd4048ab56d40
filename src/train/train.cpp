#include "dmuon/train/train.h"

#include <cstdio>
#include <exception>

#include "dmuon/comm/world.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/arguments.h"
#include "train/banner.h"
#include "train/devices.h"
#include "train/dry_run.h"
#include "train/signals.h"
#include "train/threads.h"
#include "train/trainer.h"

namespace dmuon {
namespace {

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "warning") return LogLevel::warning;
  if (name == "error") return LogLevel::error;
  return LogLevel::information;
}

void prepare_output(const Configuration& configuration, Communicator& world) {
  agreed(world, [&] {
    std::error_code failure;
    if (world.rank() == 0) std::filesystem::create_directories(configuration.output, failure);
    if (failure)
      throw StorageError(
          text("cannot create the run directory ", configuration.output, ": ", failure.message(), "; choose another \"output\""));
  });
  agreed(world, [&] {
    configure_log({world.rank(), world.size(), log_level(configuration.logging.level),
                   world.rank() == 0 ? (Path(configuration.output) / "log.txt").string() : std::string()});
  });
}

ExitCode exit_code_of(const std::exception& error) {
  const Error* typed = dynamic_cast<const Error*>(&error);
  return typed != nullptr ? typed->exit_code() : ExitCode::device;
}

[[noreturn]] void end_job(World& world, const std::exception& error) {
  log_error(text("dmuon: rank ", world.rank(), " failed: ", error.what()));
  world.abort(exit_code_of(error));
}

// Also says when the owners changed with the number of ranks or the rules' costs: who computes, never what.
void report_resumed(Communicator& world, const CheckpointReader& reader, const TrainState& state, ShardedModel& sharded) {
  const std::string hash = hash_to_hex(sharded.parameter_hash());
  if (world.rank() != 0) return;
  log_information(text("resumed step ", state.step, " from ", reader.path().string(), ": ", format_count(state.tokens),
                       " tokens seen, next sample ", format_count(state.samples), ", parameters ", hash));
  const Json plan = sharded.plan().to_json(plan_tensors(sharded.inventory(), sharded.rules()));
  if (reader.has_text("plan.json") && !(parse_json(reader.text_of("plan.json"), "plan.json") == plan))
    log_information("the plan differs from the checkpoint's: tensors have new owners, the results are the same");
}

int run(const TrainArguments& arguments, World& launched, const std::vector<ModelFamily>& families) {
  Communicator& world = launched.communicator();
  Configuration configuration;
  agreed(world, [&] { configuration = load_configuration(arguments.configuration, arguments.overrides); });
  agreed(world, [&] { require_equal_configuration(world, configuration); });
  if (arguments.print_configuration) {
    if (world.rank() == 0) std::printf("%s\n", to_json(configuration).dump(2).c_str());
    return 0;
  }
  world.set_deadline(configuration.communication.start_timeout_seconds);
  const int threads = threads_for_rank(world, static_cast<int>(configuration.threads));

  if (arguments.dry_run) {
    agreed(world, [&] {
      if (world.rank() != 0) return;
      // Sizes need no data where the configuration says how many ids there are.
      const bool sizes_only = configuration.data.train.empty() && configuration.model.vocabulary_size > 0;
      const TokenData data = sizes_only ? TokenData{} : open_data(configuration, nullptr);
      const int ranks = arguments.dry_run_ranks > 0 ? arguments.dry_run_ranks : world.size();
      std::printf("%s", describe_dry_run(configuration, data, families, ranks, threads).c_str());
    });
    return 0;
  }

  Watchdog watchdog({.rank = world.rank(),
                     .host = world.host(world.rank()),
                     .operation = [&launched] { return launched.running_operations(); },
                     .expired = {}});
  watchdog.enter("start", world.size() > 1 ? 2.0 * configuration.communication.start_timeout_seconds : 0.0);
  prepare_output(configuration, world);
  install_stop_signals();
  std::unique_ptr<Backend> backend;
  HostBackendOptions options;
  options.threads = threads;
  agreed(world, [&] { backend = make_backend(configuration.device, options); });
  CheckpointKeeper keeper(*backend, world, Path(configuration.output) / "checkpoints", configuration.checkpoint.keep);
  const std::unique_ptr<CheckpointReader> reader = keeper.open(arguments.resume);

  TokenData data;
  agreed(world, [&] {
    TokenizerHandle saved;
    if (reader && reader->has_text("tokenizer.json"))
      saved = tokenizer_from_json(parse_json(reader->text_of("tokenizer.json"), "tokenizer.json"));
    data = open_data(configuration, saved);
    if (reader) require_same_data(parse_json(reader->text_of("dataset.json"), "dataset.json"), data.fingerprint);
  });
  ModelPlan model;
  RunRules rules;
  TrainState state;
  agreed(world, [&] {
    model = make_model(configuration, data, families);
    rules = make_rules(configuration.optimizer, model.model->inventory());
    if (reader) {
      require_same_run(*reader, configuration, model.settings, describe_rules(rules, rules.table, model.model->inventory()));
      state = train_state_from_json(reader->train_state());
    }
  });
  Plan plan = make_run_plan(configuration, model.model->inventory(), rules.table, world.size());
  if (world.rank() == 0)
    log_information(banner(configuration, launched.description(), *backend, backend->information().threads, measure_gemm_flops(*backend),
                           *model.model, data, rules, plan, world.size()));
  for (const std::string& warning : rules.routing.warnings)
    if (world.rank() == 0) log_warning(warning);
  agreed(world, [&] {
    if (world.rank() != 0) return;
    const Path output(configuration.output);
    write_file_atomically(output / "configuration.json", to_json(configuration).dump(2) + "\n");
    write_file_atomically(output / "plan.json", plan.to_json(plan_tensors(model.model->inventory(), rules.table)).dump(2) + "\n");
  });

  RunResult result = RunResult::done;
  ShardedModel sharded(*backend, world, *model.model, std::move(rules.table), std::move(plan));
  try {
    if (reader) {
      keeper.load(sharded, *reader);
      report_resumed(world, *reader, state, sharded);
    } else {
      sharded.initialize(static_cast<uint64_t>(configuration.seed));
      sharded.check_replicas();
    }
    if (state.step >= configuration.training.steps && world.rank() == 0)
      log_information(text("the run is complete: step ", state.step, " of ", configuration.training.steps, " (training.steps)"));
    Trainer trainer({configuration, world, *backend, data, *model.model, model.settings, rules, sharded, keeper, watchdog}, state);
    result = trainer.run();
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    // This rank alone has failed. Unwinding would join workers that wait for the others, so the job ends here.
    if (world.size() > 1) end_job(launched, error);
    throw;
  }
  if (result == RunResult::stopped) {
    if (world.rank() == 0) log_information("stopped on request after saving; the same command resumes");
    return static_cast<int>(ExitCode::stopped);
  }
  return 0;
}

}  // namespace

int train(int argc, char** argv, const std::vector<ModelFamily>& families) {
  const ParseResult<TrainArguments> parsed = parse_train_arguments(argc, argv);
  if (!parsed.arguments) return parsed.exit_code;
  std::optional<World> world;
  try {
    world.emplace(World::start());
    const int code = run(*parsed.arguments, *world, families);
    world->finish();
    return code;
  } catch (const AgreedError& error) {
    // Every rank is here with the same error: one of them says it, and the job ends in order.
    if (world->rank() == 0) log_error(error.what());
    try {
      world->finish();
    } catch (const Error&) {
      world->abort(error.exit_code());
    }
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    if (world && world->size() > 1) end_job(*world, error);
    log_error(error.what());
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace dmuon
