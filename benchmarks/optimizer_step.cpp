// The optimizer's update alone, on the shapes of an inventory file, by every method in the same binary:
//   mpirun --oversubscribe -np 8 dmuon_bench optimizer-step --inventory configs/inventories/wall-oss-0.5.json --divide 8
// Methods take turns in rounds; ratios are medians of the rounds' ratios. Without publishing, collectives are silent while the update runs
// (make_null_communicator), which also spares the gather method the gathering of its gradients. Balance is the largest CPU time of a rank
// over the mean one: ranks that share processors would hide it in wall time.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>

#include "direct_muon.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "inventory_model.h"
#include "options.h"
#include "support.h"
#include "train/distribution.h"
#include "train/planning.h"
#include "train/tuning.h"
#include "train/update_costs.h"
#include "training.h"
#include "update_job.h"

namespace dmuon::bench {
namespace {

enum class Kernels { direct, one_by_one, tuned };

struct Mode {
  std::string name;
  std::string method;
  Kernels kernels;
  bool publish;
};

// The ablation first: each row adds one thing to the row above.
std::vector<Mode> all_modes() {
  return {{"gather, direct", "gather", Kernels::direct, false},         {"+ owner", "owner", Kernels::direct, false},
          {"+ symmetric Gram", "owner", Kernels::one_by_one, false},    {"+ batching and tuning", "owner", Kernels::tuned, false},
          {"gather, same kernels", "gather", Kernels::tuned, false},    {"owner, published", "owner", Kernels::tuned, true},
          {"gather, published", "gather", Kernels::tuned, true},        {"gather, direct, published", "gather", Kernels::direct, true},
          {"replicated, published", "replicated", Kernels::tuned, true}};
}

std::string option(const Arguments& arguments, const std::string& name, const std::string& otherwise) {
  const auto found = arguments.own.find(name);
  return found == arguments.own.end() ? otherwise : found->second;
}

class OptimizerStep {
 public:
  OptimizerStep(const Arguments& arguments, Communicator& world)
      : arguments_(arguments),
        world_(world),
        silent_(std::make_shared<std::atomic<bool>>(false)),
        transport_(make_null_communicator(world, silent_)),
        backend_(make_backend(arguments)),
        inventory_(load_inventory(option(arguments, "inventory", "configs/inventories/wall-oss-0.5.json"))),
        divide_(integer_option(arguments, "divide", 8, 1, 1 << 20)) {}

  // Of every round: medians of its turns.
  struct Result {
    std::vector<double> seconds, total_cpu, balance;
  };

  void measure(const Mode& mode, Result& result) {
    InventoryModel model(inventory_, divide_);
    DistributionConfiguration distribution;
    distribution.method = mode.method;
    distribution.stage = 1;
    distribution.planner = option(arguments_, "planner", "greedy");
    distribution.nodes = static_cast<int>(integer_option(arguments_, "nodes", 0, 0, 1 << 20));
    const RunGrid grid = make_run_grid(distribution, world_.size(), count_nodes(world_));
    const std::unique_ptr<Communicator> divided = divide_ranks(distribution, grid, *transport_);
    Communicator& transport = divided ? *divided : *transport_;
    RuleTable rules = make_rules(model.inventory(), mode.kernels);
    if (mode.kernels == Kernels::tuned) tune(distribution, model.inventory(), rules);
    std::optional<CostModel> costs;
    if (option(arguments_, "costs", "measured") == "measured" && mode.method == "owner")
      costs = agree_on_update_costs(world_, *backend_,
                                    {.tensors = plan_tensors(distribution, model.inventory(), rules),
                                     .rules = rules.rules,
                                     .window_units = static_cast<int>(distribution.window_units),
                                     .tuning = {},
                                     .cache_directory = {},
                                     .budget_seconds = 120});
    JobPlans plans = agree_on_plans(world_, {.configuration = distribution,
                                             .inventory = model.inventory(),
                                             .table = rules,
                                             .grid = grid.grid,
                                             .stored = {},
                                             .costs = costs ? &*costs : nullptr});
    ShardedModelOptions options = sharded_options(distribution, model.inventory(), grid.grid);
    UpdateJob job(*backend_, transport, model, std::move(rules), std::move(plans.mean), std::move(options), {0.02, 0.001});
    job.turn(true);  // pages, caches, and gathered gradients that are numbers
    if (!mode.publish) job.around = [this](bool begin) { *silent_ = begin; };
    Result turns;
    for (int i = 0; i < arguments_.pairs; ++i) {
      const UpdateTurn turn = job.turn(mode.publish);
      turns.seconds.push_back(turn.seconds);
      turns.total_cpu.push_back(turn.total_cpu());
      turns.balance.push_back(turn.balance());
    }
    result.seconds.push_back(spread_of(turns.seconds).median);
    result.total_cpu.push_back(spread_of(turns.total_cpu).median);
    result.balance.push_back(spread_of(turns.balance).median);
  }

  std::string title() const {
    return text(inventory_.name, divide_ > 1 ? text(" / ", divide_) : std::string(), ", ", world_.size(),
                world_.size() == 1 ? " rank" : " ranks");
  }

 private:
  RuleTable make_rules(const Inventory& inventory, Kernels kernels) {
    MuonOptions options = muon_options("keller");
    if (kernels == Kernels::one_by_one) options.workspace_bytes = 1;
    RuleTable table;
    table.rules.push_back(kernels == Kernels::direct ? make_direct_muon(options) : make_muon(options));
    table.rules.push_back(make_adamw({}));
    for (const ParameterDeclaration& parameter : inventory.parameters())
      table.rule_of.push_back(parameter.role == ParameterRole::matrix ? 0 : 1);
    return table;
  }

  // For what a rank updates in one call: all of a window where every rank does everything.
  void tune(const DistributionConfiguration& distribution, const Inventory& inventory, RuleTable& rules) {
    Configuration configuration;
    configuration.tuning.enabled = true;
    tune_rules(world_, *backend_,
               {.configuration = configuration,
                .inventory = inventory,
                .table = rules,
                .slots = distribution.method == "owner" ? world_.size() : 1,
                .window_units = static_cast<int>(distribution.window_units),
                .stored = {}});
  }

  const Arguments& arguments_;
  Communicator& world_;
  std::shared_ptr<std::atomic<bool>> silent_;
  std::unique_ptr<Communicator> transport_;
  std::unique_ptr<Backend> backend_;
  ModelInventory inventory_;
  int64_t divide_;
};

Json::Array run_on(const Arguments& arguments, Communicator& world) {
  OptimizerStep bench(arguments, world);
  std::vector<Mode> modes;
  const std::string wanted = option(arguments, "modes", "");
  for (const Mode& mode : all_modes()) {
    bool take = wanted.empty();
    std::stringstream names(wanted);
    for (std::string name; std::getline(names, name, ';');) take = take || name == mode.name;
    // Alone there is nothing to publish or to divide.
    if (world.size() == 1 && (mode.method != "owner" || mode.publish)) take = false;
    if (take) modes.push_back(mode);
  }
  if (modes.empty()) throw ConfigError(text("--modes ", wanted, ": no such mode; separate the names of the table by ;"));
  std::vector<OptimizerStep::Result> results(modes.size());
  const int64_t rounds = integer_option(arguments, "rounds", 3, 1, 1 << 20);
  for (int round = 0; round < rounds; ++round)
    for (size_t m = 0; m < modes.size(); ++m) bench.measure(modes[m], results[m]);

  Json::Array rows;
  if (world.rank() != 0) return rows;
  const auto ratio = [](const std::vector<double>& above, const std::vector<double>& below) {
    std::vector<double> ratios;
    for (size_t round = 0; round < below.size(); ++round) ratios.push_back(above[round] / below[round]);
    return spread_of(ratios).median;
  };
  for (size_t m = 0; m < modes.size(); ++m) {
    const Spread seconds = spread_of(results[m].seconds);
    const OptimizerStep::Result& above = results[m == 0 ? 0 : m - 1];
    Json row = Json::object();
    row.set("job", bench.title());
    row.set("mode", modes[m].name);
    row.set("published", modes[m].publish);
    row.set("milliseconds", seconds.median * 1e3);
    row.set("lower_quartile", seconds.lower_quartile * 1e3);
    row.set("upper_quartile", seconds.upper_quartile * 1e3);
    row.set("times_first_row", ratio(results[0].seconds, results[m].seconds));
    row.set("times_row_above", ratio(above.seconds, results[m].seconds));
    row.set("cpu_seconds_of_all_ranks", spread_of(results[m].total_cpu).median);
    row.set("times_first_row_cpu", ratio(results[0].total_cpu, results[m].total_cpu));
    row.set("balance", spread_of(results[m].balance).median);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json::Array run(const Arguments& arguments) {
  return run_job([&](World& job) { return run_on(arguments, job.communicator()); });
}

}  // namespace

Benchmark optimizer_step_benchmark() {
  return {"optimizer-step",
          "The optimizer's update alone, by every method; under mpirun",
          {{"inventory", "File of shapes (configs/inventories/*.json)"},
           {"divide", "Divides every dimension (8)"},
           {"planner", "greedy, milp, round_robin or rank0"},
           {"costs", "measured or flops, for the planner"},
           {"nodes", "Virtual nodes (0: the machine's)"},
           {"rounds", "Times that every mode has its turns (3)"},
           {"modes", "Names of the table's modes, separated by ;"}},
          run};
}

}  // namespace dmuon::bench
