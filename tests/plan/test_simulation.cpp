// Predictions of a job: conservation, closed formulas of traffic, sanity in ranks, stages and links, bad options.
#include "dmuon/plan/simulation.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {

ModelInventory inventory_of(const std::string& name) {
  return load_inventory(testing::source_directory() + "/configs/inventories/" + name + ".json");
}
Hardware hardware_of(const std::string& name) { return load_hardware(testing::source_directory() + "/configs/hardware/" + name + ".json"); }

SimulationOptions job(int ranks, int nodes, int stage = 1) {
  SimulationOptions options;
  options.ranks = ranks;
  options.nodes = nodes;
  options.stage = stage;
  options.compare_planners = false;
  return options;
}

const MethodPrediction& method(const Simulation& simulation, const std::string& name) {
  return *std::find_if(simulation.methods.begin(), simulation.methods.end(), [&](const auto& m) { return m.method == name; });
}

// Small, with sizes that divide by nothing, a unit without matrices and one vector that is cut.
ModelInventory odd_inventory() {
  return inventory_from_json(parse_json(R"({"name": "odd", "source": "test", "units": [
    {"name": "embedding", "tensors": [{"name": "w", "shape": [997, 331], "role": "embedding"}]},
    {"name": "layers", "count": 5, "tensors": [{"name": "a", "shape": [257, 129], "role": "matrix"},
      {"name": "b", "shape": [129, 641], "role": "matrix"}, {"name": "c", "shape": [1, 77], "role": "matrix"},
      {"name": "norm", "shape": [129], "role": "vector", "count": 3}]}]})",
                                        "odd.json"),
                             "odd.json");
}

}  // namespace

TEST_CASE("loads, elements and state add up over the ranks, whatever grid and planner") {
  Hardware hardware = hardware_of("cpu");
  hardware.largest_batch = 1;  // so that a rank's load is the sum of its matrices
  for (const ModelInventory& inventory : {odd_inventory(), inventory_of("gpt2-124m")}) {
    double update = 0.0;
    for (const PlanTensor& tensor : plan_tensors(inventory, hardware)) update += tensor.cost;
    for (const auto& [ranks, nodes] : {std::pair{1, 1}, {4, 1}, {4, 4}, {6, 2}, {6, 3}, {32, 4}})
      for (PlanStrategy planner : {PlanStrategy::greedy, PlanStrategy::round_robin, PlanStrategy::rank0}) {
        INFO(inventory.name << " " << ranks << " ranks " << nodes << " nodes " << name_of(planner));
        SimulationOptions options = job(ranks, nodes);
        options.planner = planner;
        const Simulation simulation = simulate(inventory, hardware, options);
        REQUIRE(simulation.ranks.size() == static_cast<size_t>(ranks));
        double seconds = 0.0;
        int64_t matrices = 0, matrix_elements = 0, elementwise = 0, state = 0;
        for (const RankPrediction& rank : simulation.ranks) {
          seconds += rank.matrix_seconds;
          matrices += rank.matrices;
          matrix_elements += rank.matrix_elements;
          elementwise += rank.elementwise_elements;
          state += rank.state_bytes;
        }
        CHECK(seconds == Approx(update).epsilon(1e-9));
        CHECK(matrices == inventory.matrices());
        CHECK(matrix_elements == inventory.matrix_elements());
        CHECK(matrix_elements + elementwise == inventory.elements());
        CHECK(state == 8 * matrix_elements + 12 * elementwise);
      }
  }
}

TEST_CASE("traffic equals the closed formulas, and the ranks send the job's bytes") {
  const ModelInventory inventory = odd_inventory();
  const int64_t all = 997 * 331 + 5 * (257 * 129 + 129 * 641 + 77 + 3 * 129), matrices = 5 * (257 * 129 + 129 * 641 + 77);
  REQUIRE(inventory.elements() == all);
  Hardware hardware = hardware_of("cpu");
  hardware.gradient_wire_bytes = 4.0;
  hardware.parameter_wire_bytes = 2.0;
  for (const auto& [nodes, shards] : {std::pair<int64_t, int64_t>{1, 1}, {1, 5}, {5, 1}, {2, 3}, {4, 8}})
    for (int stage = 1; stage <= 3; ++stage) {
      INFO(nodes << " nodes of " << shards << ", stage " << stage);
      const Simulation simulation = simulate(inventory, hardware, job(static_cast<int>(nodes * shards), static_cast<int>(nodes), stage));
      // Inside a node: every rank sends what its shards do not own; between nodes: every column agrees on its segment.
      const int64_t publish = stage == 3 ? 2 * 2 : 2;
      const int64_t intra = nodes * (shards - 1) * all * (4 + publish), inter = (nodes - 1) * all * (4 + 2);
      for (const char* name : {"adamw", "owner"}) {
        CHECK(method(simulation, name).intra_bytes == intra);
        CHECK(method(simulation, name).inter_bytes == inter);
      }
      CHECK(method(simulation, "gather").intra_bytes == intra + nodes * (shards - 1) * matrices * 4);
      CHECK(method(simulation, "gather").inter_bytes == inter + (nodes - 1) * matrices * 4);
      int64_t sent_intra = 0, sent_inter = 0;
      for (const RankPrediction& rank : simulation.ranks) sent_intra += rank.intra_bytes, sent_inter += rank.inter_bytes;
      CHECK(sent_intra == intra);
      CHECK(sent_inter == inter);
    }
}

TEST_CASE("the owner's optimizer is the slowest rank, never below the planner's bound") {
  const ModelInventory inventory = inventory_of("wall-oss-0.5");
  const Hardware hardware = hardware_of("a800");
  const double largest = matrix_update_seconds(hardware, 5120, 5120, 1);
  for (int ranks : {8, 32, 256}) {
    const Simulation simulation = simulate(inventory, hardware, job(ranks, ranks / 8));
    double slowest = 0.0;
    for (const RankPrediction& rank : simulation.ranks) slowest = std::max(slowest, rank.matrix_seconds + rank.elementwise_seconds);
    CHECK(method(simulation, "owner").optimizer_seconds() == slowest);
    CHECK(slowest >= largest);
    CHECK(simulation.planners[0].makespan_seconds >= simulation.planners[0].lower_bound_seconds * (1.0 - 1e-12));
  }
}

TEST_CASE("more ranks never slow the owner, larger stages never hold more, slower links never help") {
  const ModelInventory inventory = inventory_of("qwen2.5-1.5b");
  Hardware hardware = hardware_of("a800");
  double before = 1e9, state_before = 1e18, gather_before = 0.0;
  for (int ranks : {8, 16, 32, 64, 128}) {
    const Simulation simulation = simulate(inventory, hardware, job(ranks, ranks / 8));
    const double seconds = method(simulation, "owner").matrix_seconds;
    CHECK(seconds <= before);
    before = seconds;
    double state = 0.0;
    for (const RankPrediction& rank : simulation.ranks) state = std::max(state, static_cast<double>(rank.state_bytes));
    CHECK(state <= state_before);
    state_before = state;
    CHECK(method(simulation, "gather").gather_seconds > gather_before);
    gather_before = method(simulation, "gather").gather_seconds;
  }
  for (const char* name : {"adamw", "gather", "owner"}) {
    int64_t held = INT64_MAX;
    for (int stage = 1; stage <= 3; ++stage) {
      const int64_t bytes = method(simulate(inventory, hardware, job(16, 2, stage)), name).memory_bytes;
      CHECK(bytes < held);
      held = bytes;
    }
  }
  const double fast = method(simulate(inventory, hardware, job(16, 2)), "gather").gather_seconds;
  hardware.inter.bytes_per_second /= 2.0;
  CHECK(method(simulate(inventory, hardware, job(16, 2)), "gather").gather_seconds > fast);
}

// 4 ranks, two equal units of 2 matrices [8, 4] and an embedding of 64: 192 elements, 48 a rank.
TEST_CASE("memory of a rank, by hand") {
  const ModelInventory inventory = inventory_from_json(
      parse_json(
          R"({"name": "m", "source": "s", "units": [{"name": "u", "count": 2, "tensors": [{"name": "w", "shape": [8, 4], "role": "matrix", "count": 2}]},
        {"name": "e", "tensors": [{"name": "w", "shape": [4, 16], "role": "vector"}]}]})",
          "m"),
      "m");
  Hardware hardware = hardware_of("cpu");
  SimulationOptions options = job(4, 1, 1);
  options.look_ahead = 0;
  for (double wire : {2.0, 4.0}) {
    hardware.parameter_wire_bytes = hardware.gradient_wire_bytes = wire;
    const auto held = [&](int stage, auto field) {
      options.stage = stage;
      int64_t sum = 0;
      for (const RankPrediction& rank : simulate(inventory, hardware, options).ranks) sum += rank.*field;
      return static_cast<double>(sum);
    };
    // Four ranks together. Masters and momentum or two moments; gradients: local ones, and 192 reduced in float32.
    for (int stage : {1, 2, 3}) CHECK(held(stage, &RankPrediction::state_bytes) == 128 * 8 + 64 * 12);
    CHECK(held(1, &RankPrediction::gradient_bytes) == 4 * 192 * wire + 192 * 4);
    CHECK(held(2, &RankPrediction::gradient_bytes) == 4 * 128 * wire + 192 * 4);  // two units of 64
    CHECK(held(1, &RankPrediction::parameter_bytes) == (wire == 4.0 ? 3 * 192 * 4 : 4 * 192 * 2));
    CHECK(held(3, &RankPrediction::parameter_bytes) == 4 * (64 + 48) * wire);  // one unit and a quarter of the model
  }
}

TEST_CASE("steps: from a measured AdamW step, and from tokens and the peak") {
  const ModelInventory inventory = inventory_of("gpt2-124m");
  const Hardware hardware = hardware_of("cpu");
  SimulationOptions options = job(4, 1);
  CHECK(simulate(inventory, hardware, options).methods[0].step_seconds == 0.0);
  options.adamw_step_seconds = 30.0;
  const Simulation measured = simulate(inventory, hardware, options);
  CHECK(method(measured, "adamw").step_seconds == Approx(30.0));
  for (const char* name : {"gather", "owner"})
    CHECK(method(measured, name).step_seconds ==
          Approx(30.0 - method(measured, "adamw").optimizer_seconds() + method(measured, name).optimizer_seconds()));
  options.adamw_step_seconds = 0.0;
  options.tokens_per_rank = 1000.0;
  const Simulation computed = simulate(inventory, hardware, options);
  const double compute = 6.0 * 124439808.0 * 1000.0 / (hardware.peak_flops_per_second * hardware.training_efficiency);
  for (const MethodPrediction& m : computed.methods) {
    CHECK(m.link_seconds < compute);
    CHECK(m.step_seconds == Approx(compute + m.optimizer_seconds()));
  }
  // Links that last longer than forward and backward set the pace.
  options.tokens_per_rank = 1.0;
  const Simulation starved = simulate(inventory, hardware, options);
  for (const MethodPrediction& m : starved.methods) CHECK(m.step_seconds == Approx(m.link_seconds + m.optimizer_seconds()));
}

TEST_CASE("links: equal shares cost (n - 1) / n of everything, owners at most everything, one owner exactly that") {
  const ModelInventory inventory = inventory_from_json(
      parse_json(
          R"({"name": "m", "source": "s", "units": [{"name": "u", "tensors": [{"name": "w", "shape": [640, 640], "role": "matrix"}]}]})",
          "m"),
      "m");
  Hardware hardware = hardware_of("cpu");
  hardware.intra.bytes_per_second = hardware.inter.bytes_per_second = 1e9;
  const double all = 640.0 * 640.0 * (4.0 + 4.0) / 1e9;
  for (const auto& [ranks, nodes] : {std::pair{4, 1}, {4, 4}}) {
    const Simulation simulation = simulate(inventory, hardware, job(ranks, nodes));
    CHECK(method(simulation, "adamw").link_seconds == Approx(0.75 * all));
    CHECK(method(simulation, "owner").link_seconds == Approx(all));
  }
  CHECK(method(simulate(inventory, hardware, job(1, 1)), "owner").link_seconds == 0.0);
  // Four matrices on four ranks are equal shares.
  const ModelInventory four = inventory_from_json(
      parse_json(
          R"({"name": "m", "source": "s", "units": [{"name": "u", "tensors": [{"name": "w", "shape": [640, 160], "role": "matrix", "count": 4}]}]})",
          "m"),
      "m");
  hardware.largest_batch = 1;
  CHECK(method(simulate(four, hardware, job(4, 1)), "owner").link_seconds == Approx(0.75 * all));
}

TEST_CASE("all planners are compared, the chosen one first") {
  SimulationOptions options = job(4, 2);
  options.planner = PlanStrategy::round_robin;
  options.compare_planners = true;
  const Simulation simulation = simulate(odd_inventory(), hardware_of("cpu"), options);
  std::vector<std::string> names;
  for (const PlannerPrediction& planner : simulation.planners) names.push_back(planner.planner);
  CHECK(names == std::vector<std::string>{"round_robin", "greedy", "milp", "rank0"});
  CHECK(simulation.planners[3].makespan_seconds == Approx(4.0 * simulation.planners[3].mean_seconds));
  CHECK(simulation.planners[1].makespan_seconds <= simulation.planners[0].makespan_seconds);
}

TEST_CASE("bad options name what is wrong") {
  const ModelInventory inventory = odd_inventory();
  const Hardware hardware = hardware_of("cpu");
  const auto refused = [&](SimulationOptions options, const std::string& problem) {
    CHECK_THROWS_AS(simulate(inventory, hardware, options), ConfigError);
    CHECK_THROWS_WITH(simulate(inventory, hardware, options), Catch::Contains(problem));
  };
  refused(job(0, 1), "ranks");
  refused(job(6, 4), "4 does not divide 6");
  refused(job(6, 0), "nodes");
  refused(job(6, 2, 4), "stage");
  SimulationOptions options = job(2, 1);
  options.adamw_step_seconds = 1e-9;
  refused(options, "shorter than its optimizer");
  options.adamw_step_seconds = std::nan("");
  refused(options, "AdamW step");
  options.adamw_step_seconds = 1.0;
  options.tokens_per_rank = 1.0;
  refused(options, "not both");
  SimulationOptions memory = job(2, 1);
  memory.memory_limit_bytes = 1000;
  CHECK_THROWS_AS(simulate(inventory, hardware, memory), ConfigError);
}

TEST_CASE("reports: every rank of a small job, the spread of a large one; JSON and plot lines parse") {
  const ModelInventory inventory = inventory_of("pi0");
  const Hardware hardware = hardware_of("a800");
  const Simulation small = simulate(inventory, hardware, job(8, 1)), large = simulate(inventory, hardware, job(64, 8));
  CHECK(describe(small).find("\n   7  ") != std::string::npos);
  CHECK(describe(small).find("inferred shapes") != std::string::npos);
  CHECK(describe(large).find("\nsmallest") != std::string::npos);
  CHECK(describe(large).find("\n   7  ") == std::string::npos);

  const Json json = parse_json(to_json(large).dump(2), "report");
  CHECK(json.at("ranks").as_integer() == 64);
  CHECK(json.at("parameters").as_integer() == inventory.elements());
  CHECK(json.at("inferred").as_bool());
  REQUIRE(json.at("rank_predictions").as_array().size() == 64);
  REQUIRE(json.at("methods").as_array().size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Json& row = json.at("methods").as_array()[i];
    CHECK(row.at("optimizer_seconds").as_number() == large.methods[i].optimizer_seconds());
    CHECK(row.at("step_seconds").is_null());
  }

  std::istringstream lines(plot_data({small, large}));
  std::string line;
  std::getline(lines, line);
  const auto columns = std::count(line.begin(), line.end(), '\t');
  int rows = 0;
  while (std::getline(lines, line)) {
    CHECK(std::count(line.begin(), line.end(), '\t') == columns);
    ++rows;
  }
  CHECK(rows == 6);
}
