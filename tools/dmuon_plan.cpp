// dmuon_plan: predicts load, memory, traffic and times of a job that need not exist. Exit codes as everywhere: 2 for an
// inventory, hardware file, configuration or option that cannot be accepted.
#include <cstdio>
#include <optional>

#include "comm/vote/prediction.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/simulation.h"
#include "train/command_line.h"
#include "train/huggingface.h"
#include "train/planned_inventory.h"

namespace {

using dmuon::ConfigError, dmuon::text;

// Options that a configuration may hold as well are absent unless given.
struct Arguments {
  std::string configuration, inventory, hardware = "configs/hardware/cpu.json", json, plot;
  std::vector<std::string> overrides;
  std::vector<int> ranks{1};
  bool only_planner = false;
  double adamw_step_milliseconds = 0.0, tokens_per_rank = 0.0;
  int64_t largest_batch = 0, divisor = 1;
  std::optional<std::string> planner;
  std::optional<int> nodes, window_units, stage, look_ahead;
  std::optional<int64_t> memory_limit_bytes;
  std::optional<double> planner_time_limit_seconds;
};

void declare(CLI::App& app, Arguments& a) {
  auto* configuration = app.add_option("--config", a.configuration, "configuration file whose model and distribution are planned");
  app.add_option("--set", a.overrides, "with --config: override one key; may be repeated")->allow_extra_args(false)->needs(configuration);
  app.add_option("--inventory", a.inventory, "inventory file (configs/inventories/*.json)")->excludes(configuration);
  app.add_option("--divide-sizes", a.divisor, "divide every size of the model, rounded up: a small likeness of a large model")
      ->check(dmuon::integer_between(1, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--hardware", a.hardware, "hardware file (configs/hardware/*.json)")->capture_default_str();
  app.add_option("--ranks", a.ranks, "ranks of the job; several separated by commas give one report each")
      ->delimiter(',')
      ->check(dmuon::integer_between(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--nodes", a.nodes, "nodes, each with as many ranks; 0: as the hardware file fills them")
      ->check(dmuon::integer_between(0, 1 << 20));
  app.add_option("--planner", a.planner, "greedy (default), milp, round_robin or rank0");
  app.add_flag("--only-planner", a.only_planner, "leave the other planners out of the comparison");
  app.add_option("--planner-time-limit-seconds", a.planner_time_limit_seconds, "time limit of milp (10)")->check(dmuon::number_above(0));
  app.add_option("--window-units", a.window_units, "consecutive units that are updated and published together (4)")
      ->check(dmuon::integer_between(1, 1 << 20));
  app.add_option("--largest-batch", a.largest_batch, "equal matrices updated in one call at most; 0: as the hardware file says")
      ->check(dmuon::integer_between(0, 4096))
      ->capture_default_str();
  app.add_option("--stage", a.stage, "sharding stage, 1 (default) to 3")->check(dmuon::integer_between(1, 3));
  app.add_option("--look-ahead", a.look_ahead, "units published ahead at stage 3 (2)")->check(dmuon::integer_between(0, 1 << 20));
  app.add_option("--memory-limit-bytes", a.memory_limit_bytes, "limit of masters, gradients and state of a rank; 0: none")
      ->check(dmuon::integer_from(0));
  app.add_option("--adamw-step-milliseconds", a.adamw_step_milliseconds, "a measured AdamW step; gives the steps of the others")
      ->check(dmuon::number_above(0));
  app.add_option("--tokens-per-rank", a.tokens_per_rank, "tokens a rank computes per step; gives steps from the peak")
      ->check(dmuon::number_above(0));
  app.add_option("--json", a.json, "write the predictions to this file");
  app.add_option("--plot", a.plot, "write tab-separated lines to this file, for scripts/plot_scaling.py");
}

// What `dmuon_plan votes` is asked for.
struct VoteArguments {
  int64_t parameters = 124'000'000, workers_per_node = 1;
  std::vector<int64_t> workers{2, 4, 8, 16, 64, 256, 1024, 4096};
  double latency_microseconds = 30, gigabits_per_second = 10, inside_latency_microseconds = 4, inside_gigabits_per_second = 1600;
  std::string json;
};

CLI::App* declare(CLI::App& app, VoteArguments& a) {
  CLI::App* votes = app.add_subcommand("votes", "predicts what a one-bit vote costs by every transport, beside all-reduces");
  votes->add_option("--parameters", a.parameters, "elements voted on")
      ->check(dmuon::integer_between(1, int64_t{1'000'000'000'000}))
      ->capture_default_str();
  votes->add_option("--workers", a.workers, "workers; several separated by commas")
      ->delimiter(',')
      ->check(dmuon::integer_between(1, 1 << 20))
      ->capture_default_str();
  votes->add_option("--workers-per-node", a.workers_per_node, "workers that share the link of a node")
      ->check(dmuon::integer_between(1, 1024))
      ->capture_default_str();
  votes->add_option("--latency-microseconds", a.latency_microseconds, "of a message between nodes")
      ->check(dmuon::number_from(0))
      ->capture_default_str();
  votes->add_option("--gigabits-per-second", a.gigabits_per_second, "of the link of a node, in each direction")
      ->check(dmuon::number_above(0))
      ->capture_default_str();
  votes->add_option("--inside-latency-microseconds", a.inside_latency_microseconds, "of a message inside a node")
      ->check(dmuon::number_from(0))
      ->capture_default_str();
  votes->add_option("--inside-gigabits-per-second", a.inside_gigabits_per_second, "of a worker to others of its node")
      ->check(dmuon::number_above(0))
      ->capture_default_str();
  votes->add_option("--json", a.json, "write the predictions to this file");
  return votes;
}

void predict_votes(const VoteArguments& a) {
  dmuon::require_writable(a.json);
  const auto link = [](double microseconds, double gigabits) { return dmuon::LinkCost{microseconds * 1e-6, 8e-9 / gigabits}; };
  const dmuon::VotePredictionRequest request{a.parameters, a.workers, a.workers_per_node,
                                             link(a.latency_microseconds, a.gigabits_per_second),
                                             link(a.inside_latency_microseconds, a.inside_gigabits_per_second)};
  std::printf("%s", dmuon::describe_votes(request).c_str());
  if (!a.json.empty()) {
    dmuon::Json document = dmuon::Json::object();
    document.set("votes", dmuon::predict_votes(request));
    dmuon::write_file_atomically(a.json, document.dump(2) + "\n");
  }
}

// What is planned: model, machine, and the options that hold for every number of ranks; nodes 0 fills the machine's.
struct Job {
  dmuon::ModelInventory inventory;
  dmuon::Hardware hardware;
  dmuon::SimulationOptions options;
};

Job job_of(const Arguments& a) {
  if (a.configuration.empty() == a.inventory.empty()) throw ConfigError("give --config FILE or --inventory FILE");
  Job job;
  job.hardware = dmuon::load_hardware(a.hardware);
  job.options.nodes = 0;
  if (a.inventory.empty()) {
    const dmuon::Configuration configuration =
        dmuon::load_configuration(a.configuration, a.overrides, dmuon::huggingface_import(dmuon::models()));
    job.inventory = dmuon::planned_inventory(configuration, dmuon::models());
    job.options = dmuon::planned_options(configuration);
    job.hardware.parameter_wire_bytes = configuration.distribution.compute_dtype == "bfloat16" ? 2.0 : 4.0;
    job.hardware.gradient_wire_bytes = configuration.distribution.gradient_dtype == "bfloat16" ? 2.0 : 4.0;
  } else {
    job.inventory = dmuon::load_inventory(a.inventory);
  }
  job.inventory = dmuon::divided(job.inventory, a.divisor);
  if (a.largest_batch > 0) job.hardware.largest_batch = a.largest_batch;
  dmuon::SimulationOptions& options = job.options;
  if (a.planner) options.planner = dmuon::plan_strategy_from_name(*a.planner);
  options.compare_planners = !a.only_planner;
  options.nodes = a.nodes.value_or(options.nodes);
  options.window_units = a.window_units.value_or(options.window_units);
  options.stage = a.stage.value_or(options.stage);
  options.look_ahead = a.look_ahead.value_or(options.look_ahead);
  options.memory_limit_bytes = a.memory_limit_bytes.value_or(options.memory_limit_bytes);
  options.time_limit_seconds = a.planner_time_limit_seconds.value_or(options.time_limit_seconds);
  options.adamw_step_seconds = a.adamw_step_milliseconds * 1e-3;
  options.tokens_per_rank = a.tokens_per_rank;
  return job;
}

int nodes_of(const Job& job, int ranks) {
  if (job.options.nodes > 0) return job.options.nodes;
  const auto per_node = static_cast<int>(job.hardware.ranks_per_node);
  if (ranks <= per_node) return 1;
  if (ranks % per_node != 0)
    throw ConfigError(
        text("--ranks ", ranks, " does not fill nodes of ", per_node, " (ranks_per_node of ", job.hardware.name, "); give --nodes"));
  return ranks / per_node;
}

// Options of the planner given before "votes" would be read by nobody.
void refuse_options(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0)
      throw ConfigError(text(option->get_name(), " is no option of \"dmuon_plan votes\"; ",
                             option->get_name() == "--ranks" ? "the number of workers is --workers" : "see \"dmuon_plan votes --help\""));
}

void predict(const Arguments& a) {
  dmuon::require_writable(a.json);
  dmuon::require_writable(a.plot);
  const Job job = job_of(a);
  std::vector<dmuon::Simulation> simulations;
  for (const int ranks : a.ranks) {
    dmuon::SimulationOptions options = job.options;
    options.ranks = ranks;
    options.nodes = nodes_of(job, ranks);
    simulations.push_back(dmuon::simulate(job.inventory, job.hardware, options));
    std::printf("%s%s", simulations.size() > 1 ? "\n" : "", dmuon::describe(simulations.back()).c_str());
  }
  if (!a.json.empty()) {
    dmuon::Json list = dmuon::Json::array();
    for (const dmuon::Simulation& simulation : simulations) list.push_back(dmuon::to_json(simulation));
    dmuon::Json document = dmuon::Json::object();
    document.set("simulations", list);
    dmuon::write_file_atomically(a.json, document.dump(2) + "\n");
  }
  if (!a.plot.empty()) dmuon::write_file_atomically(a.plot, dmuon::plot_data(simulations));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Predicts who computes how long, what each rank holds and what each link carries:\n"
      "  dmuon_plan --inventory configs/inventories/wall-oss-0.5.json --hardware configs/hardware/a800.json --ranks 8,256\n"
      "  dmuon_plan --config configs/bench_gpt2_124m.json --ranks 4\n"
      "  dmuon_plan votes --parameters 124000000 --workers 2,4,8,16\n"
      "Assumptions and a comparison with published measurements: docs/scaling.md");
  Arguments a;
  declare(app, a);
  VoteArguments vote_arguments;
  const CLI::App* votes = declare(app, vote_arguments);
  return dmuon::run_program(app, argc, argv, [&] {
    if (!votes->parsed()) return predict(a);
    refuse_options(app);
    predict_votes(vote_arguments);
  });
}
