#include "train/dry_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "comm/nccl/staging.h"
#include "core/memory_accounting.h"
#include "dmuon/backend/device.h"
#include "dmuon/core/text.h"
#include "train/batches.h"
#include "train/counting_communicator.h"
#include "train/devices.h"
#include "train/memory_fit.h"
#include "train/votes.h"

namespace dmuon {

int64_t resident_bytes() {
  long long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lld %lld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

namespace {

HostTokenBatch blank_batch(int64_t sequences, int64_t length) {
  HostTokenBatch batch;
  batch.sequences = sequences;
  batch.length = length;
  batch.tokens.assign(static_cast<size_t>(sequences * length), 0);
  batch.targets.assign(static_cast<size_t>(sequences * length), 0);
  batch.valid_targets = sequences * length;
  return batch;
}

struct RankCost {
  MemoryStatistics memory;
  int64_t device_bytes = 0;
  TrafficBytes sent, votes;  // in a step
  double optimizer_flops = 0;
};

int64_t largest_slot(const Plan& plan) {
  int64_t largest = 0;
  for (const UnitLayout& unit : plan.units)
    for (size_t slot = 0; slot + 1 < unit.cuts.size(); ++slot) largest = std::max(largest, unit.cuts[slot + 1] - unit.cuts[slot]);
  return largest;
}

// What reductions between nodes stage outside the backend, one at a time (src/comm/collectives.cpp): up to two pieces of
// 256 KiB from each peer. Inside a node ranks read each other's memory. What is voted on is reduced inside a replica only.
int64_t staging_bytes(const RunGrid& run, const JobPlans& plans, int64_t element_bytes) {
  if (run.nodes == 1) return 0;
  constexpr int64_t pieces = int64_t{512} << 10;
  const auto staged = [&](const Plan& plan, int64_t peers) { return peers * std::min(largest_slot(plan) * element_bytes, pieces); };
  const bool replicas_cross = run.grid.shards > run.grid.ranks() / run.nodes;
  const int64_t means = staged(plans.mean, (run.grid.replicas > 1 ? run.grid.replicas : run.grid.ranks()) - 1);
  const int64_t votes = replicas_cross ? staged(plans.vote, run.grid.shards - 1) : 0;
  return std::min(int64_t{8} << 20, std::max(means, votes));
}

// What reductions through NCCL stage in device memory, one at a time inside nodes and one between them. The segment of a shard is
// the slots of its replicas. NCCL's own buffers come on top and are not known here.
std::vector<int64_t> device_staging(const RunGrid& run, const JobPlans& plans, int64_t element_bytes) {
  const auto staged = [&](const Plan& plan, int64_t group, int64_t slots) -> int64_t {
    const int64_t longest = slots * largest_slot(plan);
    if (group <= 1 || longest == 0) return 0;
    return group * nccl::reduction_pieces(group, longest, longest, element_bytes).stride * element_bytes;
  };
  const int64_t shards = run.grid.shards, replicas = run.grid.replicas;
  return {std::max(staged(plans.mean, shards, replicas), staged(plans.vote, shards, 1)), staged(plans.mean, replicas, 1)};
}

// Measuring needs ranks that exist.
VoteTransportKind counted_transport(const Configuration& configuration) {
  const VoteTransportKind kind = vote_transport_from_name(configuration.distribution.vote_transport);
  return kind == VoteTransportKind::automatic ? VoteTransportKind::packed_scatter : kind;
}

TrafficBytes operator-(const TrafficBytes& a, const TrafficBytes& b) { return {a.inside - b.inside, a.between - b.between}; }

void add(TrafficBytes& sum, const TrafficBytes& each, int64_t times) {
  sum.inside += times * each.inside, sum.between += times * each.between;
}

// Two steps, because the second starts with what the first left behind.
RankCost simulate_rank(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families, int rank,
                       const RunGrid& run, const JobPlans& plans, int threads, int64_t walked) {
  BackendOptions options;
  options.mode = HostMode::shape_only;
  options.threads = threads;
  const std::unique_ptr<Backend> backend = make_backend(configuration.device, options);
  const auto shared = std::make_shared<int64_t>(0);  // bytes through which ranks of a host meet
  const std::unique_ptr<Communicator> world = make_counting_communicator(rank, run, shared);
  ModelPlan plan = make_model(configuration, data, families);
  RunRules rules = make_rules(with_newton_schulz_dtype(configuration, *backend), plan.model->inventory());
  const int ranks = run.grid.ranks();
  ShardedModelOptions sharding = sharded_options(configuration.distribution, plan.model->inventory(), run.grid);
  sharding.vote_transport = counted_transport(configuration);
  ShardedModel sharded(*backend, *world, *plan.model, std::move(rules.table), plans, std::move(sharding));
  sharded.initialize(0);
  const StepShape shape = step_shape(configuration, ranks);
  const Block mine = block(shape.global_batch, rank, ranks);
  RankCost cost;
  walked = std::min(walked, shape.micro_batches);
  const int64_t left_out = shape.micro_batches - walked;
  for (int64_t step = 1; step <= 2; ++step) {
    const TrafficBytes before = sharded.traffic(), votes_before = sharded.vote_traffic();
    TrafficBytes between{}, votes_between{};  // of the third micro-batch
    sharded.begin_step(walked);
    for (int64_t k = 0; k < walked; ++k) {
      const TrafficBytes sent = sharded.traffic(), votes_sent = sharded.vote_traffic();
      const int64_t index = k + 1 < walked ? k : shape.micro_batches - 1;
      const int64_t first = std::min(mine.count, index * shape.micro_batch_size);
      const int64_t count = std::min(shape.micro_batch_size, mine.count - first);
      sharded.begin_micro_batch();
      ExecutionContext context{*backend, backend->compute_stream()};
      StepClock clock;
      if (count > 0) train_micro_batch(*plan.model, context, blank_batch(count, configuration.model.context_length), 1.0, clock);
      sharded.end_micro_batch();
      if (k == 2) between = sharded.traffic() - sent, votes_between = sharded.vote_traffic() - votes_sent;
    }
    const double extras[] = {0.0, 0.0};
    sharded.finish_gradients(extras);
    backend->reset_costs();
    sharded.update(step_values(rules, step, 1.0), step == 1);  // observed: it takes memory, but its bytes are not a usual step's
    cost.sent = sharded.traffic() - before, cost.votes = sharded.vote_traffic() - votes_before;
    add(cost.sent, between, left_out), add(cost.votes, votes_between, left_out);
  }
  for (const auto& [name, kernel] : backend->costs()) cost.optimizer_flops += kernel.flops;
  if (data.validation) {
    ExecutionContext context{*backend, backend->compute_stream()};
    evaluate_batch(*plan.model, context, blank_batch(configuration.evaluation.batch_size, configuration.model.context_length));
  }
  cost.memory = backend->allocator().statistics();
  const int64_t element_bytes = size_of(sharded.options().gradient_dtype);
  int64_t staging = 0;
  if (const DeviceBackend* device = device_of(*backend)) {
    cost.device_bytes = device->memory().peak_reserved;
    for (const int64_t bytes : device_staging(run, plans, element_bytes)) {
      if (bytes > 0) cost.device_bytes += block_size_class(bytes);  // blocks of two streams, kept for the next reduction
      staging = std::max(staging, bytes);
    }
  } else {
    staging = staging_bytes(run, plans, element_bytes) + *shared;
  }
  cost.memory.categories[static_cast<size_t>(MemoryCategory::communication)].peak += staging;
  cost.memory.total.peak += staging;
  return cost;
}

}  // namespace

DryRunReport dry_run(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                     const RunGrid& run, int threads, int64_t walked) {
  DryRunReport report;
  const int ranks = run.grid.ranks();
  report.resident_bytes = resident_bytes();
  const ModelPlan plan = make_model(configuration, data, families);
  report.model_flops_per_step = plan.model->facts().flops_per_token(configuration.model.context_length) *
                                static_cast<double>(step_shape(configuration, ranks).global_batch * configuration.model.context_length);
  const RunRules rules = make_rules(configuration.optimizer, plan.model->inventory());
  for (size_t rule = 0; rule < rules.table.rules.size(); ++rule)
    if (rules.routing.share[rule].tensors > 0)
      report.optimizer_bytes_per_parameter[rules.table.rules[rule]->name()] =
          4.0 * static_cast<double>(rules.table.rules[rule]->state().size());
  report.plans = make_run_plans(configuration.distribution, plan.model->inventory(), rules.table, run.grid);
  report.rank_bytes.assign(static_cast<size_t>(ranks), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    // Ranks differ by their slots only; a large job is sampled at its ends.
    if (ranks > 16 && rank >= 8 && rank < ranks - 8) continue;
    const RankCost cost = simulate_rank(configuration, data, families, rank, run, report.plans, threads, walked);
    report.optimizer_flops_per_step += cost.optimizer_flops;
    report.rank_bytes[static_cast<size_t>(rank)] = cost.memory.total.peak;
    if (rank == 0 || cost.memory.total.peak > report.memory.total.peak) {
      report.memory = cost.memory;
      report.device_bytes = cost.device_bytes;
      report.largest_rank = rank;
      report.sent_per_step = cost.sent;
      report.votes_per_step = cost.votes;
    }
  }
  std::replace(report.rank_bytes.begin(), report.rank_bytes.end(), int64_t{-1}, report.memory.total.peak);
  return report;
}

MemoryStatistics predict_memory(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                                const RunGrid& run, int rank, int threads) {
  const ModelPlan plan = make_model(configuration, data, families);
  const RunRules rules = make_rules(configuration.optimizer, plan.model->inventory());
  DistributionConfiguration distribution = configuration.distribution;
  if (distribution.planner == "milp") distribution.planner = "greedy", distribution.memory_limit_bytes = 0;
  const JobPlans plans = make_run_plans(distribution, plan.model->inventory(), rules.table, run.grid);
  return simulate_rank(configuration, data, families, rank, run, plans, threads, walked_micro_batches).memory;
}

namespace {

// "fits: 1.2 GB of 20 GB available", or why not.
std::string describe_fit(const DryRunReport& report, const DryRunHost& host) {
  if (report.device_bytes > 0) return "";
  const AvailableMemory available = available_memory();
  std::vector<RankMemory> ranks;
  for (const int rank : host.ranks) ranks.push_back({"", report.rank_bytes[static_cast<size_t>(rank)], available});
  const MemoryFit fit = judge_memory(ranks);
  if (fit.bound.empty()) return "\nunknown whether it fits: this host does not say how much memory is available\n";
  const std::string whose = fit.ranks == 1 ? "one rank" : text(fit.ranks, " ranks");
  const std::string where = host.present ? "of this host" : "if all were on this host";
  if (fit.fits())
    return text("\nfits: ", format_bytes(fit.needed), " of ", format_bytes(fit.available), " available (", whose, " ", where, ")\n");
  return text("\ndoes not fit: ", format_bytes(fit.needed), " needed by ", whose, " ", where, ", ", format_bytes(fit.available),
              " available (", fit.bound, ")\n  remedy: ", memory_remedies(largest_category(report.memory)), "\n");
}

}  // namespace

std::string describe_dry_run(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families,
                             const RunGrid& run, int threads, const DryRunHost& host) {
  const int ranks = run.grid.ranks();
  const ModelPlan model = make_model(configuration, data, families);
  const Inventory& inventory = model.model->inventory();
  const RunRules rules = make_rules(configuration.optimizer, inventory);
  require_possible_votes(configuration, run, inventory, rules.table);
  const DryRunReport report = dry_run(configuration, data, families, run, threads);
  const Plan& plan = report.plans.mean;
  const StepShape shape = step_shape(configuration, ranks);
  const auto tera = [](double flops) { return format_number(flops * 1e-12, 4) + " TFLOP"; };

  std::string out =
      text("Model ", configuration.model.family, ": ", format_count(inventory.elements()), " parameters in ", inventory.units().size(),
           " units\n\nRouting\n", rules.routing_table, "\nRanks: ", describe_distribution(configuration.distribution, inventory, run), "\n",
           describe_plans(plan, report.plans.vote, configuration.distribution, inventory, rules.table),
           configuration.distribution.cost_model == "measured" ? "  the run measures its costs and may own otherwise\n" : "");
  std::vector<std::vector<std::string>> loads{{"rank", "whole tensors", "update cost", "elements held"}};
  for (int rank = 0; rank < std::min(ranks, 32); ++rank) {
    int64_t whole = 0, elements = 0;
    double load = 0.0;
    const auto add = [&](const Plan& of, int slot) {
      for (const Piece& piece : of.pieces(slot)) {
        elements += piece.count;
        whole += piece.count == inventory.parameters()[static_cast<size_t>(piece.tensor)].shape.elements();
      }
      load += of.loads[static_cast<size_t>(slot)];
    };
    add(plan, run.grid.slot_of(rank));
    if (!report.plans.vote.units.empty()) add(report.plans.vote, run.grid.shard_of(rank));
    loads.push_back({std::to_string(rank), std::to_string(whole), tera(load), format_count(elements)});
  }
  out += format_table(loads);
  out += text("\nStep: ", format_count(shape.global_batch), " sequences of ", configuration.model.context_length,
              " tokens = ", format_count(shape.global_batch * configuration.model.context_length), " tokens, ", shape.micro_batches,
              " micro-batch(es) of at most ", shape.micro_batch_size, " a rank\n  model ", tera(report.model_flops_per_step),
              ", optimizer ", tera(report.optimizer_flops_per_step), ", sent by rank ", report.largest_rank, " ",
              format_bytes(report.sent_per_step.inside), " inside its node, ", format_bytes(report.sent_per_step.between), " to others\n");
  if (const std::string votes =
          describe_votes(configuration, inventory, rules.table, run, plan, report.plans.vote, counted_transport(configuration), {});
      !votes.empty())
    out += text("\n", votes, "\n", describe_vote_bytes(configuration, inventory, run, report.plans.vote), "  sent by rank ",
                report.largest_rank, " for votes: ", format_count(report.votes_per_step.inside), " bytes inside its node, ",
                format_count(report.votes_per_step.between), " to others\n");
  std::vector<std::vector<std::string>> states{{"rule", "optimizer bytes per parameter"}};
  for (const auto& [rule, bytes] : report.optimizer_bytes_per_parameter) states.push_back({rule, format_number(bytes, 0)});
  out += "\n" + format_table(states);
  out += text("\nMemory of rank ", report.largest_rank, " (the largest)\n");
  std::vector<std::vector<std::string>> memory{{"category", "peak"}};
  for (size_t i = 0; i < report.memory.categories.size(); ++i)
    memory.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), format_bytes(report.memory.categories[i].peak)});
  memory.push_back({"all of them at once", format_bytes(report.memory.total.peak)});
  memory.push_back({"program, libraries and open data", format_bytes(report.resident_bytes)});
  if (report.device_bytes > 0) memory.push_back({"taken from the device", format_bytes(report.device_bytes)});
  memory.push_back({"predicted", format_bytes(report.predicted_bytes())});
  return out + format_table(memory) + describe_fit(report, host);
}

}  // namespace dmuon
