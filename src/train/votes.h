// The votes of a run: what they cannot be joined with, what they send, and what is said of them before they begin.
#pragma once

#include <string>
#include <vector>

#include "dmuon/comm/vote_cost.h"
#include "dmuon/config/configuration.h"
#include "dmuon/plan/plan.h"
#include "train/distribution.h"
#include "train/rules.h"

namespace dmuon {

// ConfigError for what a voting rule cannot be joined with on this grid: the key, and the remedy. That is a worker without a sequence
// in any step, a transport that needs nodes, and stage 3 of a unit with voted tensors where a worker is one rank. What no grid
// allows, the configuration has refused. Nothing for a run without votes.
void require_possible_votes(const Configuration& configuration, const RunGrid& run, const Inventory& inventory, const RuleTable& table);

// What a user should know of this number of workers and of their shares of a step (of the settings themselves: vote_notes); none
// without votes.
std::vector<std::string> worker_notes(const Configuration& configuration, const RunGrid& run);

// Elements of tensors that are voted on, and of all others.
struct VotedElements {
  int64_t voted = 0;
  int64_t others = 0;
};
VotedElements voted_elements(const RuleTable& table, const Inventory& inventory);

// 64-bit words of one vote of a step among the workers of that shard: a piece of n elements takes ceil(n / 64) and its header's.
int64_t vote_words(const Plan& vote, int shard, const Inventory& inventory);

// Bytes that a rank sends in a step, on average over the ranks. Votes are exact for `kind`; the rest leaves out the agreement on
// the norm and what evaluation gathers.
struct PredictedTraffic {
  double votes = 0.0;
  double others = 0.0;   // gradients and parameters of everything, where they travel
  double float32 = 0.0;  // of a ring that adds all gradients in float32 instead
};
PredictedTraffic predict_traffic(const Configuration& configuration, const Inventory& inventory, const RunGrid& run, const Plan& mean,
                                 const Plan& vote, VoteTransportKind kind);

// Lines for people: workers, share of elements, `transport` (how it was chosen), bytes a step. "" for a run without votes.
std::string describe_votes(const Configuration& configuration, const Inventory& inventory, const RuleTable& table, const RunGrid& run,
                           const Plan& mean, const Plan& vote, VoteTransportKind kind, const std::string& transport);

// A line for people: the bytes that all ranks together send in the votes of one step, with every transport that this grid allows.
std::string describe_vote_bytes(const Configuration& configuration, const Inventory& inventory, const RunGrid& run, const Plan& vote);

}  // namespace dmuon
