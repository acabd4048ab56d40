// Predicts a job that need not exist: who computes how long, what each rank holds, what each link carries, for AdamW, for
// gather (every rank all-gathers the reduced gradients and orthogonalises everything) and for owner. Pure functions of inventory,
// hardware and options. docs/scaling.md states every assumption and compares the results with published measurements.
//
// The grid is `nodes` replicas of ranks / nodes shards. Rank = node * shards + shard; its slot in the plan is
// shard * nodes + node. Bytes are those sent, by all ranks together unless said otherwise, padding excluded. With P elements,
// N ranks, M nodes of G ranks, a reduction (element size g) or publish (size w) sends M (G - 1) P g inside the nodes and
// (M - 1) P g between them, however the slots are cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/hardware.h"
#include "dmuon/plan/model_inventory.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

struct SimulationOptions {
  int ranks = 1;
  int nodes = 1;                                // divides ranks
  PlanStrategy planner = PlanStrategy::greedy;  // of the per-rank figures and of the owner's prediction
  bool compare_planners = true;                 // makespans of the other planners too
  int window_units = 4;
  double time_limit_seconds = 10.0;  // of the milp planner
  int stage = 1;                     // 1 to 3, for memory and traffic
  int look_ahead = 2;                // units published ahead at stage 3
  int64_t memory_limit_bytes = 0;    // of masters, gradients and state of a rank; 0: none; the compared planners run without
  int64_t cut_elements = 16384;      // of element-wise tensors
  // One of them gives step times: a measured step with AdamW, whose time without the optimizer is kept for the others, or
  // tokens that a rank computes per step. Either hides the links' time until they take longer.
  double adamw_step_seconds = 0.0;
  double tokens_per_rank = 0.0;
};

struct RankPrediction {
  int matrices = 0;
  int64_t matrix_elements = 0, elementwise_elements = 0;  // whose master and state this rank holds
  double matrix_seconds = 0.0, elementwise_seconds = 0.0;
  int64_t state_bytes = 0;                   // float32 masters and optimizer state
  int64_t gradient_bytes = 0;                // reduced ones in float32, and local ones in wire dtype where the stage keeps them
  int64_t parameter_bytes = 0;               // published values in wire dtype that are held at once
  int64_t intra_bytes = 0, inter_bytes = 0;  // sent by this rank in a step
  double seconds() const { return matrix_seconds + elementwise_seconds; }
  int64_t memory_bytes() const { return state_bytes + gradient_bytes + parameter_bytes; }
};

struct PlannerPrediction {
  std::string planner;                                                           // as asked for
  std::string method;                                                            // that was used: "greedy" where milp fell back
  std::string fallback;                                                          // why
  double makespan_seconds = 0.0, mean_seconds = 0.0, lower_bound_seconds = 0.0;  // of matrix updates
};

struct MethodPrediction {
  std::string method;                                      // "adamw", "gather", "owner"
  double matrix_seconds = 0.0, elementwise_seconds = 0.0;  // of the slowest rank
  double gather_seconds = 0.0;                             // collectives inside the optimizer: gather only
  double link_seconds = 0.0;                               // that the busier level of links carries reduces and publishes
  double step_seconds = 0.0;                               // 0: no step was given
  int64_t intra_bytes = 0, inter_bytes = 0;                // sent by all ranks in a step
  int64_t memory_bytes = 0;                                // of the fullest rank, activations excluded
  double optimizer_seconds() const { return matrix_seconds + elementwise_seconds + gather_seconds; }
};

struct Simulation {
  std::string model, hardware;
  bool inferred = false;
  int64_t parameters = 0, matrices = 0, matrix_elements = 0;
  SimulationOptions options;
  std::vector<RankPrediction> ranks;
  std::vector<PlannerPrediction> planners;  // the chosen one first
  PlanReport plan;                          // of the chosen one
  std::vector<MethodPrediction> methods;    // adamw, gather, owner
};

// ConfigError when ranks, nodes or stage are out of range, when nodes does not divide ranks, when both step inputs are
// given, or when the AdamW step is shorter than its predicted optimizer.
Simulation simulate(const ModelInventory& inventory, const Hardware& hardware, const SimulationOptions& options);

// The inventory as the planner sees it, costs in seconds of an update alone.
std::vector<PlanTensor> plan_tensors(const ModelInventory& inventory, const Hardware& hardware);
// Seconds of an update of every matrix shape for batches up to the hardware's largest: the planner's cost model.
CostModel simulated_costs(const ModelInventory& inventory, const Hardware& hardware);

// Tables for people, JSON for programs, tab-separated lines (first one: names) for plots.
std::string describe(const Simulation& simulation);
Json to_json(const Simulation& simulation);
std::string plot_data(const std::vector<Simulation>& simulations);

}  // namespace dmuon
