// dmuon_plan: predicts load, memory, traffic and times of a job that need not exist. Exit codes as everywhere: 2 for an
// inventory, hardware file, configuration or option that cannot be accepted.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/simulation.h"
#include "train/planned_inventory.h"

namespace {

using dmuon::ConfigError, dmuon::text;

struct Arguments {
  std::string configuration, inventory, hardware = "configs/hardware/cpu.json", planner = "greedy", json, plot;
  std::vector<std::string> overrides;
  std::vector<int> ranks{1};
  int nodes = 0, largest_batch = 0;
  double adamw_step_milliseconds = 0.0;
  bool only_planner = false;
  dmuon::SimulationOptions options;
};

void declare(CLI::App& app, Arguments& a) {
  auto* configuration = app.add_option("--config", a.configuration, "configuration file whose model is planned");
  app.add_option("--set", a.overrides, "with --config: override one key; may be repeated")->allow_extra_args(false)->needs(configuration);
  app.add_option("--inventory", a.inventory, "inventory file (configs/inventories/*.json)")->excludes(configuration);
  app.add_option("--hardware", a.hardware, "hardware file (configs/hardware/*.json)")->capture_default_str();
  app.add_option("--ranks", a.ranks, "ranks of the job; several separated by commas give one report each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--nodes", a.nodes, "nodes, each with as many ranks; 0: as the hardware file fills them")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--planner", a.planner, "greedy, milp, round_robin or rank0")->capture_default_str();
  app.add_flag("--only-planner", a.only_planner, "leave the other planners out of the comparison");
  app.add_option("--planner-time-limit-seconds", a.options.time_limit_seconds, "time limit of milp")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--window-units", a.options.window_units, "consecutive units that are updated and published together")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--largest-batch", a.largest_batch, "equal matrices updated in one call at most; 0: as the hardware file says")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--stage", a.options.stage, "sharding stage, 1 to 3")->check(CLI::Range(1, 3))->capture_default_str();
  app.add_option("--memory-limit-bytes", a.options.memory_limit_bytes, "limit of masters, gradients and state of a rank; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--adamw-step-milliseconds", a.adamw_step_milliseconds, "a measured AdamW step; gives the steps of the others")
      ->check(CLI::PositiveNumber);
  app.add_option("--tokens-per-rank", a.options.tokens_per_rank, "tokens a rank computes per step; gives steps from the peak")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", a.json, "write the predictions to this file");
  app.add_option("--plot", a.plot, "write tab-separated lines to this file, for scripts/plot_scaling.py");
}

int nodes_of(const Arguments& a, int ranks, const dmuon::Hardware& hardware) {
  if (a.nodes > 0) return a.nodes;
  const auto per_node = static_cast<int>(hardware.ranks_per_node);
  if (ranks <= per_node) return 1;
  if (ranks % per_node != 0)
    throw ConfigError(text("--ranks ", ranks, " does not fill nodes of ", per_node, " (ranks_per_node of ", a.hardware, "); give --nodes"));
  return ranks / per_node;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Predicts who computes how long, what each rank holds and what each link carries:\n"
      "  dmuon_plan --inventory configs/inventories/wall-oss-0.5.json --hardware configs/hardware/a800.json --ranks 8,256\n"
      "  dmuon_plan --config configs/bench_gpt2_124m.json --ranks 4\n"
      "Assumptions and a comparison with published measurements: docs/scaling.md");
  Arguments a;
  declare(app, a);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : static_cast<int>(dmuon::ExitCode::bad_input);
  }
  if (a.configuration.empty() == a.inventory.empty()) throw ConfigError("give --config FILE or --inventory FILE");
  dmuon::Hardware hardware = dmuon::load_hardware(a.hardware);
  if (a.largest_batch > 0) hardware.largest_batch = a.largest_batch;
  const dmuon::ModelInventory inventory =
      a.inventory.empty() ? dmuon::planned_inventory(dmuon::load_configuration(a.configuration, a.overrides), dmuon::models())
                          : dmuon::load_inventory(a.inventory);
  a.options.planner = dmuon::plan_strategy_from_name(a.planner);
  a.options.adamw_step_seconds = a.adamw_step_milliseconds * 1e-3;
  a.options.compare_planners = !a.only_planner;
  std::vector<dmuon::Simulation> simulations;
  for (const int ranks : a.ranks) {
    a.options.ranks = ranks;
    a.options.nodes = nodes_of(a, ranks, hardware);
    simulations.push_back(dmuon::simulate(inventory, hardware, a.options));
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
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const dmuon::Error& failure) {
    std::fprintf(stderr, "dmuon_plan: %s\n", failure.what());
    return static_cast<int>(failure.exit_code());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "dmuon_plan: %s\n", failure.what());
    return 1;
  }
}
