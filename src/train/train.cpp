#include "dmuon/train/train.h"

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "dmuon/backend/device.h"
#include "dmuon/comm/device_communicator.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/arguments.h"
#include "train/banner.h"
#include "train/devices.h"
#include "train/dry_run.h"
#include "train/huggingface.h"
#include "train/memory_fit.h"
#include "train/same_run.h"
#include "train/signals.h"
#include "train/threads.h"
#include "train/trace_output.h"
#include "train/trainer.h"
#include "train/tuning.h"
#include "train/update_costs.h"
#include "train/votes.h"

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

void report_resumed(Communicator& world, const CheckpointReader& reader, const TrainState& state, ShardedModel& sharded) {
  const std::string hash = hash_to_hex(sharded.parameter_hash());
  if (world.rank() != 0) return;
  log_information(text("resumed step ", state.step, " from ", reader.path().string(), ": ", format_count(state.tokens),
                       " tokens seen, next sample ", format_count(state.samples), ", parameters ", hash));
}

void print_dry_run(const TrainArguments& arguments, const Configuration& configuration, const std::vector<ModelFamily>& families,
                   const Communicator& world, int machine_nodes, int threads) {
  // Sizes need no data where the configuration says how many ids there are.
  const bool sizes_only = configuration.data.train.empty() && configuration.model.vocabulary_size > 0;
  const TokenData data = sizes_only ? TokenData{} : open_data(configuration, nullptr);
  const bool present = arguments.dry_run_ranks == 0;
  const int ranks = present ? world.size() : arguments.dry_run_ranks;
  if (!present) machine_nodes = 1;
  DryRunHost host{{}, present};
  for (int rank = 0; rank < ranks; ++rank)
    if (!present || world.host(rank) == world.host(world.rank())) host.ranks.push_back(rank);
  const RunGrid grid = make_run_grid(configuration.distribution, ranks, machine_nodes, any_rule_votes(configuration.optimizer));
  std::printf("%s", describe_dry_run(configuration, data, families, grid, threads, host).c_str());
}

std::string vote_banner(const Configuration& configuration, const RunGrid& grid, const ShardedModel& sharded) {
  const VoteReport& report = sharded.vote_report();
  return describe_votes(configuration, sharded.inventory(), sharded.rules(), grid, sharded.plan(), sharded.vote_plan(),
                        vote_transport_from_name(report.transport.empty() ? "packed_gather" : report.transport), report.choice);
}

std::string stored_text(const CheckpointReader* reader, const std::string& name) {
  return reader != nullptr && reader->has_text(name) ? reader->text_of(name) : std::string();
}

int run_on_grid(const TrainArguments& arguments, const Configuration& configuration, World& launched, Communicator& hosts,
                const RunGrid& grid, int threads, const std::vector<ModelFamily>& families) {
  TraceOutput trace(hosts, arguments.trace);
  Watchdog watchdog({.rank = hosts.rank(),
                     .host = hosts.host(hosts.rank()),
                     .operation = [&launched] { return launched.running_operations(); },
                     .expired =
                         [&trace](const std::string& line) {
                           trace.write_alone();
                           std::fprintf(stderr, "%s\n", line.c_str());
                           std::fflush(nullptr);
                           _exit(static_cast<int>(ExitCode::communication));
                         }});
  watchdog.enter("start", hosts.size() > 1 ? 2.0 * configuration.communication.start_timeout_seconds : 0.0);
  prepare_output(configuration, hosts);
  install_stop_signals();
  BackendOptions options;
  options.threads = threads;
  const ChosenDevice chosen = choose_device_together(hosts, configuration.device, options);
  Backend* const backend = chosen.backend.get();
  if (hosts.rank() == 0) log_information(chosen.found);
  // Between devices tensors travel by themselves.
  std::unique_ptr<Communicator> devices;
  agreed(hosts, [&] { devices = make_device_communicator(*backend, hosts); });
  Communicator& world = devices ? *devices : hosts;
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
  ShardedModelOptions sharding;
  agreed(world, [&] {
    model = make_model(configuration, data, families);
    rules = make_rules(with_newton_schulz_dtype(configuration, *backend), model.model->inventory());
    sharding = sharded_options(configuration.distribution, model.model->inventory(), grid.grid);
    require_possible_votes(configuration, grid, model.model->inventory(), rules.table);
    sharding.trace = trace.trace();
    sharding.vote_seed = static_cast<uint64_t>(configuration.seed);
  });
  const Inventory& inventory = model.model->inventory();
  if (world.rank() == 0)
    log_information(banner(configuration, launched.description(), *backend, backend->information().threads, measure_gemm_flops(*backend),
                           *model.model, data, rules, grid));
  for (const std::string& warning : rules.routing.warnings)
    if (world.rank() == 0) log_warning(warning);
  for (const auto& notes : {vote_notes(configuration), worker_notes(configuration, grid)})
    for (const std::string& note : notes)
      if (world.rank() == 0) log_information(text("note: ", note));
  if (device_of(*backend) == nullptr) {
    MemoryStatistics predicted;
    agreed(world, [&] {
      Configuration here = configuration;
      here.device = backend->name();
      predicted = predict_memory(here, data, families, grid, world.rank(), threads);
    });
    require_memory(world, predicted);
  }
  const Json tuning = tune_rules(world, *backend,
                                 {.configuration = configuration,
                                  .inventory = inventory,
                                  .table = rules.table,
                                  .slots = configuration.distribution.method == "owner" ? world.size() : 1,
                                  .vote_slots = grid.grid.shards,
                                  .window_units = static_cast<int>(configuration.distribution.window_units),
                                  .stored = stored_text(reader.get(), "tuning.json")});
  TrainState state;
  agreed(world, [&] {
    if (!reader) return;
    require_same_run(*reader, configuration, model.settings, describe_rules(rules, rules.table, inventory));
    state = train_state_from_json(reader->train_state());
  });
  CostModel costs;
  PlanRequest planning{.configuration = configuration.distribution,
                       .inventory = inventory,
                       .table = rules.table,
                       .grid = grid.grid,
                       .stored = stored_text(reader.get(), "plan.json"),
                       .costs = &costs};
  if (configuration.distribution.cost_model == "measured" && !stored_plan_applies(planning))
    costs = agree_on_update_costs(world, *backend,
                                  {.tensors = plan_tensors(configuration.distribution, inventory, rules.table),
                                   .rules = rules.table.rules,
                                   .window_units = static_cast<int>(configuration.distribution.window_units),
                                   .published_dtype = sharding.compute_dtype,
                                   .tuning = tuning.dump(),
                                   .cache_directory = cache_directory(configuration.tuning)});
  JobPlans plans = agree_on_plans(world, planning);
  agreed(world, [&] {
    if (world.rank() != 0) return;
    const Path output(configuration.output);
    write_file_atomically(output / "configuration.json", to_json(configuration).dump(2) + "\n");
    write_file_atomically(output / "plan.json",
                          plan_json(plans.mean, plans.vote, configuration.distribution, inventory, rules.table).dump(2) + "\n");
  });

  RunResult result = RunResult::done;
  backend->allocator().reset_peak();  // what measurements took is no part of training
  ShardedModel sharded(*backend, world, *model.model, std::move(rules.table), std::move(plans), std::move(sharding));
  try {
    if (reader) {
      keeper.load(sharded, *reader);
      report_resumed(world, *reader, state, sharded);
    } else {
      if (const std::string& from = configuration.model.from; from.empty()) {
        sharded.initialize(static_cast<uint64_t>(configuration.seed));
      } else {
        const auto values =
            huggingface_values(world, from, find_family(families, configuration.model.family), model.settings, model.model->inventory());
        agreed(world, [&] { sharded.fill_masters(values); });  // a file may fail on one rank only
        sharded.publish_all();
      }
      sharded.check_replicas();
    }
    if (world.rank() == 0)
      if (const std::string votes = vote_banner(configuration, grid, sharded); !votes.empty()) log_information(votes);
    if (state.step >= configuration.training.steps && world.rank() == 0)
      log_information(text("the run is complete: step ", state.step, " of ", configuration.training.steps, " (training.steps)"));
    Trainer trainer({.configuration = configuration,
                     .world = world,
                     .backend = *backend,
                     .data = data,
                     .model = *model.model,
                     .model_settings = model.settings,
                     .tuning = tuning,
                     .rules = rules,
                     .sharded = sharded,
                     .keeper = keeper,
                     .watchdog = watchdog,
                     .staging = [&launched] { return launched.memory(); },
                     .trace = trace.trace()},
                    state);
    result = trainer.run();
    if (const std::string memory = describe_device_memory(*backend); world.rank() == 0 && !memory.empty()) log_information(memory);
    trace.write(world);
  } catch (const AgreedError&) {
    try {
      trace.write(world);  // every rank is here
    } catch (const Error&) {
      trace.write_alone();
    }
    throw;
  } catch (const std::exception& error) {
    trace.write_alone();
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

int run(const TrainArguments& arguments, World& launched, const std::vector<ModelFamily>& families) {
  Communicator& all = launched.communicator();
  Configuration configuration;
  agreed(all, [&] {
    configuration = load_configuration(arguments.configuration, arguments.overrides, huggingface_import(families, arguments.resume));
  });
  agreed(all, [&] { require_equal_configuration(all, configuration); });
  if (arguments.print_configuration) {
    if (all.rank() == 0) std::printf("%s\n", to_json(configuration).dump(2).c_str());
    return 0;
  }
  all.set_deadline(configuration.communication.start_timeout_seconds);
  const int threads = threads_for_rank(all, static_cast<int>(configuration.threads));
  const int machine_nodes = count_nodes(all);
  if (arguments.dry_run) {
    agreed(all, [&] {
      if (all.rank() == 0) print_dry_run(arguments, configuration, families, all, machine_nodes, threads);
    });
    return 0;
  }
  RunGrid grid;
  std::unique_ptr<Communicator> divided;
  agreed(all, [&] {
    grid = make_run_grid(configuration.distribution, all.size(), machine_nodes, any_rule_votes(configuration.optimizer));
    divided = divide_ranks(configuration.distribution, grid, all);
  });
  if (!divided) return run_on_grid(arguments, configuration, launched, all, grid, threads, families);
  divided->set_deadline(configuration.communication.start_timeout_seconds);
  return run_on_grid(arguments, configuration, launched, *divided, grid, threads, families);
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
