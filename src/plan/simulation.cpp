#include "dmuon/plan/simulation.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int matrix_rule = 0, elementwise_rule = 1;
constexpr int64_t float_bytes = 4;

void check(const SimulationOptions& options) {
  if (options.ranks < 1 || options.ranks > 1 << 20) throw ConfigError(text("ranks: expected 1 to ", 1 << 20, ", found ", options.ranks));
  if (options.nodes < 1 || options.ranks % options.nodes != 0)
    throw ConfigError(text("nodes: ", options.nodes, " does not divide ", options.ranks, " ranks; every node needs as many"));
  if (options.stage < 1 || options.stage > 3) throw ConfigError(text("stage: expected 1, 2 or 3, found ", options.stage));
  for (const auto& [name, value] : {std::pair{"AdamW step", options.adamw_step_seconds}, {"tokens per rank", options.tokens_per_rank}})
    if (!std::isfinite(value) || value < 0.0) throw ConfigError(text(name, ": expected a positive number, found ", value));
  if (options.adamw_step_seconds > 0.0 && options.tokens_per_rank > 0.0)
    throw ConfigError("give an AdamW step or tokens per rank, not both: either tells the time of forward and backward");
}

int64_t bytes_of(double elements, double size) { return std::llround(elements * size); }

// What a job moves in one step, by all ranks together.
struct Traffic {
  int64_t intra = 0, inter = 0;
};
Traffic traffic_of(double elements, double size, const SimulationOptions& options) {
  const double nodes = options.nodes, shards = options.ranks / options.nodes;
  return {bytes_of(nodes * (shards - 1.0) * elements, size), bytes_of((nodes - 1.0) * elements, size)};
}

// Slots of the owner's plan, seen by rank.
class Job {
 public:
  Job(const ModelInventory& inventory, const Hardware& hardware, const SimulationOptions& options)
      : inventory_(inventory), hardware_(hardware), options_(options), shards_(options.ranks / options.nodes) {
    elements_ = static_cast<double>(inventory.elements());
    matrix_elements_ = static_cast<double>(inventory.matrix_elements());
    std::vector<int64_t> unit_elements(inventory.units.size(), 0);
    for (const InventoryTensor& tensor : inventory.tensors) unit_elements[static_cast<size_t>(tensor.unit)] += tensor.shape.elements();
    std::sort(unit_elements.rbegin(), unit_elements.rend());
    for (size_t i = 0; i < unit_elements.size(); ++i) {
      if (i < static_cast<size_t>(1 + options.look_ahead)) live_elements_ += static_cast<double>(unit_elements[i]);
      if (i < 2) leaving_elements_ += static_cast<double>(unit_elements[i]);
    }
  }

  std::vector<RankPrediction> ranks(const Plan& plan) const;
  MethodPrediction adamw() const;
  MethodPrediction gather() const;
  MethodPrediction owner(const Plan& plan, const std::vector<RankPrediction>& ranks) const;

 private:
  double pass_seconds(double passes, double elements) const { return 4.0 * passes * elements / hardware_.memory_bytes_per_second; }
  // Element-wise tensors of the fullest rank; `elements` of the whole model.
  double elementwise_share(double elements) const {
    return elements / static_cast<double>(hardware_.elementwise_per_node ? shards_ : options_.ranks);
  }
  // A ring through all ranks in which every rank ends with `bytes`, the nodes one after the other.
  double all_gather_seconds(double bytes) const;
  // Equal shares everywhere.
  void set_traffic(MethodPrediction& method) const;
  // Busy time of the busier level when inside a node, and between nodes, every link carries so many elements once.
  double link_seconds(double intra_elements, double inter_elements) const;
  int64_t parameter_bytes(double owned_elements) const;
  int64_t local_gradient_bytes() const;

  const ModelInventory& inventory_;
  const Hardware& hardware_;
  const SimulationOptions& options_;
  int shards_;
  double elements_ = 0.0, matrix_elements_ = 0.0;
  double live_elements_ = 0.0;     // of the units that stage 3 holds whole at once
  double leaving_elements_ = 0.0;  // of the units whose gradients stages 2 and 3 hold: one fills while one leaves
};

// Of a rank that holds masters of `owned_elements`. Published in float32, a master is its own published value.
int64_t Job::parameter_bytes(double owned_elements) const {
  const bool apart = options_.stage == 3 || hardware_.parameter_wire_bytes != float_bytes;
  // Stage 3 keeps the units in use and, between forward and backward, this rank's segment of its node's copy.
  const double held = options_.stage < 3 ? elements_ : std::min(elements_, live_elements_ + elements_ / shards_);
  return bytes_of(held - (apart ? 0.0 : owned_elements), hardware_.parameter_wire_bytes);
}

int64_t Job::local_gradient_bytes() const {
  return bytes_of(options_.stage == 1 ? elements_ : leaving_elements_, hardware_.gradient_wire_bytes);
}

std::vector<RankPrediction> Job::ranks(const Plan& plan) const {
  std::vector<RankPrediction> ranks(static_cast<size_t>(options_.ranks));
  std::vector<double> segments(static_cast<size_t>(shards_), 0.0);  // elements of a shard's slots together
  std::vector<double> slots(ranks.size(), 0.0);
  const auto rank_of = [&](int slot) { return static_cast<size_t>(slot % options_.nodes * shards_ + slot / options_.nodes); };
  for (int slot = 0; slot < plan.slots; ++slot) {
    RankPrediction& rank = ranks[rank_of(slot)];
    for (const Piece& piece : plan.pieces(slot)) {
      const bool matrix = inventory_.tensors[static_cast<size_t>(piece.tensor)].role == TensorRole::matrix;
      rank.matrices += matrix;
      (matrix ? rank.matrix_elements : rank.elementwise_elements) += piece.count;
      slots[rank_of(slot)] += static_cast<double>(piece.count);
      segments[static_cast<size_t>(slot / options_.nodes)] += static_cast<double>(piece.count);
    }
    rank.matrix_seconds = plan.loads[static_cast<size_t>(slot)];
  }
  const double elementwise = elements_ - matrix_elements_;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankPrediction& rank = ranks[i];
    if (hardware_.elementwise_per_node) rank.elementwise_elements = std::llround(std::ceil(elementwise_share(elementwise)));
    rank.elementwise_seconds = pass_seconds(hardware_.adamw_passes, static_cast<double>(rank.elementwise_elements));
    // Master and momentum; master and two moments.
    rank.state_bytes = float_bytes * (2 * rank.matrix_elements + 3 * rank.elementwise_elements);
    rank.gradient_bytes = local_gradient_bytes() + float_bytes * (rank.matrix_elements + rank.elementwise_elements);
    rank.parameter_bytes = parameter_bytes(static_cast<double>(rank.matrix_elements + rank.elementwise_elements));
    // Reduce: every other segment leaves for its shard, then every other slot of the own segment for its node. Publish: the
    // mirror. Stage 3 publishes once more inside the node.
    const double segment = segments[i % static_cast<size_t>(shards_)], slot = slots[i];
    const double publishes = options_.stage == 3 ? 2.0 : 1.0;
    rank.intra_bytes = bytes_of(elements_ - segment, hardware_.gradient_wire_bytes) +
                       bytes_of(publishes * (shards_ - 1) * segment, hardware_.parameter_wire_bytes);
    rank.inter_bytes =
        bytes_of(segment - slot, hardware_.gradient_wire_bytes) + bytes_of((options_.nodes - 1) * slot, hardware_.parameter_wire_bytes);
  }
  return ranks;
}

void Job::set_traffic(MethodPrediction& method) const {
  const Traffic reduce = traffic_of(elements_, hardware_.gradient_wire_bytes, options_);
  const Traffic publish = traffic_of(elements_, hardware_.parameter_wire_bytes, options_);
  method.intra_bytes = reduce.intra + (options_.stage == 3 ? 2 : 1) * publish.intra;
  method.inter_bytes = reduce.inter + publish.inter;
  method.link_seconds = link_seconds(elements_ * (shards_ - 1) / shards_, elements_ * (options_.nodes - 1) / options_.nodes);
}

double Job::link_seconds(double intra_elements, double inter_elements) const {
  const double publishes = options_.stage == 3 ? 2.0 : 1.0;
  const double intra = intra_elements * (hardware_.gradient_wire_bytes + publishes * hardware_.parameter_wire_bytes);
  const double inter = inter_elements * (hardware_.gradient_wire_bytes + hardware_.parameter_wire_bytes);
  return std::max(intra / hardware_.intra.bytes_per_second, inter / hardware_.inter.bytes_per_second);
}

MethodPrediction Job::adamw() const {
  MethodPrediction method;
  method.method = "adamw";
  const double share = elementwise_share(elements_);
  method.elementwise_seconds = pass_seconds(hardware_.adamw_passes, share);
  method.memory_bytes = bytes_of(share, 4.0 * float_bytes) + local_gradient_bytes() + parameter_bytes(share);
  set_traffic(method);
  return method;
}

double Job::all_gather_seconds(double bytes) const {
  if (options_.ranks == 1) return 0.0;
  const double ranks = options_.ranks, nodes = options_.nodes;
  const double latency = (ranks - nodes) * hardware_.intra.latency_seconds + (nodes - 1.0) * hardware_.inter.latency_seconds;
  double bandwidth = shards_ > 1 ? hardware_.intra.bytes_per_second : hardware_.inter.bytes_per_second;
  if (options_.nodes > 1) bandwidth = std::min(bandwidth, hardware_.inter.bytes_per_second);
  return hardware_.collective_seconds + latency + bytes * (ranks - 1.0) / ranks / bandwidth;
}

// Momentum on the own slice, all-gather per matrix, Newton-Schulz on everything, the rest of the update on the own slice.
MethodPrediction Job::gather() const {
  MethodPrediction method;
  method.method = "gather";
  double largest = 0.0;
  for (const InventoryTensor& tensor : inventory_.tensors) {
    if (tensor.role != TensorRole::matrix) continue;
    const double elements = static_cast<double>(tensor.shape.elements());
    const MatrixBatch matrices = matrix_batch(tensor.shape, 1);
    largest = std::max(largest, elements);
    method.matrix_seconds += newton_schulz_seconds(hardware_, hardware_.gather, matrices.rows, matrices.columns, matrices.batch);
    method.gather_seconds += all_gather_seconds(elements * hardware_.gradient_wire_bytes);
  }
  method.matrix_seconds += pass_seconds(hardware_.matrix_update_passes, matrix_elements_ / options_.ranks);
  const double rest = elementwise_share(elements_ - matrix_elements_);
  method.elementwise_seconds = pass_seconds(hardware_.adamw_passes, rest);
  method.memory_bytes = bytes_of(matrix_elements_ / options_.ranks, 3.0 * float_bytes) + bytes_of(rest, 4.0 * float_bytes) +
                        local_gradient_bytes() + parameter_bytes(matrix_elements_ / options_.ranks + rest) +
                        bytes_of(largest, hardware_.gradient_wire_bytes);
  set_traffic(method);
  const Traffic gradients = traffic_of(matrix_elements_, hardware_.gradient_wire_bytes, options_);
  method.intra_bytes += gradients.intra;
  method.inter_bytes += gradients.inter;
  return method;
}

// A ring of n takes n - 1 turns as long as the largest share; broadcasts (and reduces to one) carry everything over every link
// once. The cheaper form is taken per unit.
MethodPrediction Job::owner(const Plan& plan, const std::vector<RankPrediction>& ranks) const {
  MethodPrediction method;
  method.method = "owner";
  for (const RankPrediction& rank : ranks) {
    if (rank.seconds() > method.matrix_seconds + method.elementwise_seconds) {
      method.matrix_seconds = rank.matrix_seconds;
      method.elementwise_seconds = rank.elementwise_seconds;
    }
    method.memory_bytes = std::max(method.memory_bytes, rank.memory_bytes());
  }
  set_traffic(method);
  const auto cheaper = [](double all, double largest, int participants) { return std::min(all, (participants - 1) * largest); };
  double intra = 0.0, inter = 0.0;
  for (const UnitLayout& unit : plan.units) {
    double largest_segment = 0.0;
    for (int shard = 0; shard < shards_; ++shard) {
      const auto first = unit.cuts.begin() + shard * options_.nodes;
      double largest_slot = 0.0;
      for (int node = 0; node < options_.nodes; ++node)
        largest_slot = std::max(largest_slot, static_cast<double>(first[node + 1] - first[node]));
      const double segment = static_cast<double>(first[options_.nodes] - first[0]);
      largest_segment = std::max(largest_segment, segment);
      inter += cheaper(segment, largest_slot, options_.nodes);
    }
    intra += cheaper(static_cast<double>(unit.elements), largest_segment, shards_);
  }
  method.link_seconds = link_seconds(intra, inter);
  return method;
}

// Forward and backward hide what the links carry as long as they last longer; the optimizer hides nothing.
void set_steps(const Hardware& hardware, Simulation& simulation) {
  const SimulationOptions& options = simulation.options;
  double rest = 0.0;
  if (options.tokens_per_rank > 0.0)
    rest = 6.0 * static_cast<double>(simulation.parameters) * options.tokens_per_rank /
           (hardware.training_efficiency * hardware.peak_flops_per_second);
  if (options.adamw_step_seconds > 0.0) {
    const double optimizer = simulation.methods[0].optimizer_seconds();
    rest = options.adamw_step_seconds - optimizer;
    if (rest <= 0.0)
      throw ConfigError(
          text("an AdamW step of ", options.adamw_step_seconds, " s is shorter than its optimizer, predicted as ", optimizer, " s"));
  }
  if (rest == 0.0) return;
  for (MethodPrediction& method : simulation.methods)
    method.step_seconds = std::max(rest, method.link_seconds) + method.optimizer_seconds();
  if (options.adamw_step_seconds > 0.0) simulation.methods[0].step_seconds = options.adamw_step_seconds;
}

PlannerPrediction planner_prediction(const Plan& plan) {
  PlannerPrediction prediction;
  prediction.planner = plan.strategy;
  prediction.method = plan.search.method;
  prediction.fallback = plan.search.fallback;
  prediction.makespan_seconds = plan.makespan();
  for (double load : plan.loads) prediction.mean_seconds += load / plan.slots;
  prediction.lower_bound_seconds = plan.lower_bound;
  return prediction;
}

}  // namespace

namespace {

double update_seconds(const Hardware& hardware, const Shape& shape, int64_t batch) {
  const MatrixBatch matrices = matrix_batch(shape, batch);
  return matrix_update_seconds(hardware, matrices.rows, matrices.columns, matrices.batch);
}

}  // namespace

std::vector<PlanTensor> plan_tensors(const ModelInventory& inventory, const Hardware& hardware) {
  std::vector<PlanTensor> tensors;
  tensors.reserve(inventory.tensors.size());
  for (const InventoryTensor& tensor : inventory.tensors) {
    const bool matrix = tensor.role == TensorRole::matrix;
    PlanTensor row;
    row.name = tensor.name;
    row.shape = tensor.shape;
    row.unit = tensor.unit;
    row.whole = matrix;
    row.cost = matrix ? update_seconds(hardware, tensor.shape, 1) : 0.0;
    row.rule = matrix ? matrix_rule : elementwise_rule;
    row.state_bytes_per_element = matrix ? 4 : 8;
    tensors.push_back(std::move(row));
  }
  return tensors;
}

CostModel simulated_costs(const ModelInventory& inventory, const Hardware& hardware) {
  CostModel costs;
  for (const InventoryTensor& tensor : inventory.tensors) {
    if (tensor.role != TensorRole::matrix || costs.find(matrix_rule, tensor.shape) != nullptr) continue;
    ShapeCost row;
    row.rule = matrix_rule;
    row.shape = tensor.shape;
    for (int batch = 1; batch <= hardware.largest_batch; ++batch)
      row.batches.push_back({batch, update_seconds(hardware, tensor.shape, batch)});
    costs.add(std::move(row));
  }
  return costs;
}

Simulation simulate(const ModelInventory& inventory, const Hardware& hardware, const SimulationOptions& options) {
  check(options);
  Simulation simulation;
  simulation.model = inventory.name;
  simulation.hardware = hardware.name;
  simulation.inferred = inventory.inferred;
  simulation.parameters = inventory.elements();
  simulation.matrices = inventory.matrices();
  simulation.matrix_elements = inventory.matrix_elements();
  simulation.options = options;

  const std::vector<PlanTensor> tensors = plan_tensors(inventory, hardware);
  const CostModel costs = simulated_costs(inventory, hardware);
  PlanOptions plan_options;
  plan_options.slots = options.ranks;
  plan_options.replicas = options.nodes;
  plan_options.window_units = options.window_units;
  plan_options.time_limit_seconds = options.time_limit_seconds;
  plan_options.memory_limit_bytes = options.memory_limit_bytes;
  plan_options.cut_elements = options.cut_elements;
  plan_options.cost_model = &costs;
  const auto plan_by = [&](PlanStrategy strategy) {
    plan_options.strategy = strategy;
    return make_plan(tensors, static_cast<int>(inventory.units.size()), plan_options);
  };
  const Plan plan = plan_by(options.planner);
  simulation.planners.push_back(planner_prediction(plan));
  simulation.plan = plan.report(tensors);
  if (options.compare_planners) {
    plan_options.memory_limit_bytes = 0;  // rank0 would not fit
    for (PlanStrategy strategy : {PlanStrategy::greedy, PlanStrategy::milp, PlanStrategy::round_robin, PlanStrategy::rank0})
      if (strategy != options.planner) simulation.planners.push_back(planner_prediction(plan_by(strategy)));
  }

  const Job job(inventory, hardware, simulation.options);
  simulation.ranks = job.ranks(plan);
  simulation.methods = {job.adamw(), job.gather(), job.owner(plan, simulation.ranks)};
  set_steps(hardware, simulation);
  return simulation;
}

}  // namespace dmuon
