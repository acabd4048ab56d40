#include "train/votes.h"

#include <algorithm>

#include "dmuon/backend/sign_segments.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/data/sample_order.h"
#include "train/local_state.h"
#include "train/run.h"

namespace dmuon {

namespace {

// Sequences of a step by worker, the same in every step: block() divides by rank.
std::vector<int64_t> worker_sequences(const Configuration& configuration, const RankGrid& grid) {
  const int64_t batch = step_shape(configuration, grid.ranks()).global_batch;
  std::vector<int64_t> sequences(static_cast<size_t>(grid.replicas), 0);
  for (int rank = 0; rank < grid.ranks(); ++rank)
    sequences[static_cast<size_t>(grid.replica_of(rank))] += block(batch, rank, grid.ranks()).count;
  return sequences;
}

// The momentum of a worker without samples stays 0, and all such workers send the same signs of zeros: a bloc that outvotes others.
void require_samples(const Configuration& configuration, const RankGrid& grid) {
  const std::vector<int64_t> sequences = worker_sequences(configuration, grid);
  const auto idle = std::find(sequences.begin(), sequences.end(), 0);
  if (idle == sequences.end()) return;
  const int64_t length = configuration.model.context_length;
  const int64_t batch = step_shape(configuration, grid.ranks()).global_batch;
  const int64_t needed = int64_t{grid.replicas - 1} * grid.shards + 1;  // ranks fill up in their order
  throw ConfigError(text("training.batch_tokens = ", configuration.training.batch_tokens, ": ", batch, " sequences of ", length,
                         " tokens on ", grid.ranks(), " ranks leave worker ", idle - sequences.begin(), " of ", grid.replicas,
                         " without any in every step, and it would vote all the same, with nothing to say; choose at least ",
                         needed * length, " tokens (", needed, " sequences), or fewer workers (distribution.replicas)"));
}

void require_shards_for_stage_3(const Configuration& configuration, const RunGrid& run, const Inventory& inventory,
                                const RuleTable& table) {
  if (run.grid.shards > 1) return;
  const DistributionConfiguration& distribution = configuration.distribution;
  const std::vector<int> stages = make_unit_stages(distribution, inventory);
  for (size_t i = 0; i < inventory.parameters().size(); ++i) {
    const auto unit = static_cast<size_t>(inventory.parameters()[i].unit);
    if (stages[unit] != 3 || !is_voted(table, static_cast<int>(i))) continue;
    throw ConfigError(
        text("distribution.", distribution.stage == 3 ? "stage = 3" : "unit_stages", ": unit ", inventory.units()[unit].name,
             " at stage 3 with a voting rule and distribution.replicas = ", distribution.replicas, " on ", run.grid.ranks(),
             " ranks: every rank is a worker that holds all parameters it votes on, so there is nothing to shard; choose "
             "stage 1 or 2, or fewer replicas (distribution.replicas = the number of nodes), whose ranks share a worker's part"));
  }
}

}  // namespace

void require_possible_votes(const Configuration& configuration, const RunGrid& run, const Inventory& inventory, const RuleTable& table) {
  if (!any_rule_votes(configuration.optimizer)) return;
  require_samples(configuration, run.grid);
  require_shards_for_stage_3(configuration, run, inventory, table);
  if (configuration.distribution.vote_transport == "hierarchical" && run.nodes == 1)
    throw ConfigError(
        "distribution.vote_transport = hierarchical counts inside nodes first, and all ranks are on one node; choose auto, or name virtual "
        "nodes with distribution.nodes");
}

std::vector<std::string> worker_notes(const Configuration& configuration, const RunGrid& run) {
  std::vector<std::string> notes;
  if (!any_rule_votes(configuration.optimizer)) return notes;
  const RankGrid& grid = run.grid;
  if (grid.replicas == 1) notes.push_back("one worker votes alone: the signs of its own message are the vote");
  if (grid.replicas == 2)
    notes.push_back(
        "two workers: where they disagree, about half of all elements, one of them decides alone; the vote is hardly better than one "
        "worker's signs");
  else if (grid.replicas % 2 == 0)
    notes.push_back(text(grid.replicas, " workers can tie, and one of them then decides alone: in a single vote they err as often as ",
                         grid.replicas - 1, " do"));
  const std::vector<int64_t> sequences = worker_sequences(configuration, grid);
  const auto [least, most] = std::minmax_element(sequences.begin(), sequences.end());
  if (*least != *most)
    notes.push_back(text("workers have ", *least, " to ", *most, " sequences of a step and one vote each, whatever their share; ",
                         "training.batch_tokens in multiples of ", grid.ranks() * configuration.model.context_length,
                         " gives all of them as many"));
  if (configuration.distribution.vote_transport == "int8_sum" && vote_sum_dtype(grid.replicas) != DType::int8)
    notes.push_back(vote_sum_note(grid.replicas));
  if (run.nodes > 1 && grid.shards == 1 && grid.ranks() > run.nodes && grid.ranks() % run.nodes == 0)
    notes.push_back(text("every rank of the ", run.nodes, " nodes is a worker of its own; distribution.replicas = ", run.nodes,
                         " makes each node one worker, whose ranks share its momentum and its orthogonalisation"));
  return notes;
}

VotedElements voted_elements(const RuleTable& table, const Inventory& inventory) {
  VotedElements sum;
  for (size_t i = 0; i < inventory.parameters().size(); ++i) {
    const int64_t elements = inventory.parameters()[i].shape.elements();
    (is_voted(table, static_cast<int>(i)) ? sum.voted : sum.others) += elements;
  }
  return sum;
}

int64_t vote_words(const Plan& vote, int shard, const Inventory& inventory) {
  int64_t words = 0;
  for (const Piece& piece : vote.pieces(shard)) {
    const Shape& shape = inventory.parameters()[static_cast<size_t>(piece.tensor)].shape;
    words += sign_words(piece.count) + sign_header_words(sign_segments(shape, piece.first, piece.count, vote.cut_elements));
  }
  return words;
}

namespace {

VoteSize vote_size(const Inventory& inventory, const RunGrid& run, const Plan& vote, int shard) {
  const int nodes = std::min(run.nodes, run.grid.replicas);
  return {run.grid.replicas, run.grid.replicas % nodes == 0 ? nodes : 1, vote_words(vote, shard, inventory)};
}

double buffer_elements(const Plan& plan) {
  int64_t elements = 0;
  for (const UnitLayout& unit : plan.units) elements += unit.elements;
  return static_cast<double>(elements);
}

// Of all ranks together: the shards vote each for themselves.
int64_t job_vote_bytes(const Inventory& inventory, const RunGrid& run, const Plan& vote, VoteTransportKind kind) {
  int64_t bytes = 0;
  for (int shard = 0; shard < run.grid.shards && !vote.units.empty(); ++shard)
    bytes += vote_bytes(kind, vote_size(inventory, run, vote, shard)).total;
  return bytes;
}

}  // namespace

PredictedTraffic predict_traffic(const Configuration& configuration, const Inventory& inventory, const RunGrid& run, const Plan& mean,
                                 const Plan& vote, VoteTransportKind kind) {
  PredictedTraffic bytes;
  const RankGrid& grid = run.grid;
  bytes.votes = static_cast<double>(job_vote_bytes(inventory, run, vote, kind)) / grid.ranks();

  const DistributionConfiguration& distribution = configuration.distribution;
  const auto micro_batches = static_cast<double>(step_shape(configuration, grid.ranks()).micro_batches);
  const double reductions = distribution.stage == 1 && distribution.reduce != "every" ? 1.0 : micro_batches;
  // Stage 3 gathers inside a replica before each use; between replicas owners publish once a step, whatever the stage.
  const double gathers = distribution.stage == 3 ? 2.0 * micro_batches : 1.0;
  const double reduced = reductions * (distribution.gradient_dtype == "bfloat16" ? 2.0 : 4.0);
  const double published = distribution.compute_dtype == "bfloat16" ? 2.0 : 4.0;
  const double inside = (grid.shards - 1.0) / grid.shards, between = (grid.replicas - 1.0) / grid.replicas / grid.shards;
  bytes.others = (reduced + gathers * published) * inside * (buffer_elements(mean) + buffer_elements(vote)) +
                 (reduced + published) * between * buffer_elements(mean);
  bytes.float32 = all_reduce_bytes_per_rank(grid.ranks(), inventory.elements(), 4);
  return bytes;
}

std::string describe_votes(const Configuration& configuration, const Inventory& inventory, const RuleTable& table, const RunGrid& run,
                           const Plan& mean, const Plan& vote, VoteTransportKind kind, const std::string& transport) {
  const VotedElements elements = voted_elements(table, inventory);
  if (elements.voted == 0) return {};
  const PredictedTraffic bytes = predict_traffic(configuration, inventory, run, mean, vote, kind);
  const auto size = [](double value) { return format_bytes(static_cast<int64_t>(value + 0.5)); };
  const double share = static_cast<double>(elements.voted) / static_cast<double>(elements.voted + elements.others);
  std::string out =
      text("votes     ", run.grid.replicas, run.grid.replicas == 1 ? " worker" : " workers", " of ", run.grid.shards,
           run.grid.shards == 1 ? " shard" : " shards", " each; ", format_number(100.0 * share, 1), " % of all elements are voted on\n");
  if (!transport.empty()) out += text("  moved     by ", transport, "\n");
  return out + text("  a step    sends ", size(bytes.votes), " a rank for votes and about ", size(bytes.others), " for everything else, ",
                    size(bytes.votes + bytes.others), " in all; adding all gradients in float32 would send ", size(bytes.float32));
}

std::string describe_vote_bytes(const Configuration& configuration, const Inventory& inventory, const RunGrid& run, const Plan& vote) {
  std::vector<std::string> parts;
  for (const VoteTransportKind kind : possible_vote_transports(vote_size(inventory, run, vote, 0)))
    parts.push_back(text(name_of(kind), ' ', format_count(job_vote_bytes(inventory, run, vote, kind)), " bytes"));
  const std::string& asked = configuration.distribution.vote_transport;
  return text("  all ranks together, by transport: ", join(parts, ", "),
              asked == "auto" ? "; auto measures the links at the start and chooses, counted here is packed_scatter\n"
                              : text("; ", asked, " is asked for (distribution.vote_transport)\n"));
}

}  // namespace dmuon
