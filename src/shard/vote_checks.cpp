#include "shard/vote_checks.h"

#include "dmuon/core/text.h"
#include "shard/shard_job.h"

namespace dmuon {
namespace {

// Every tensor with a vote rule lies in the vote plan, and nothing else does.
void check_members(const ShardJob& job) {
  std::vector<bool> voted(job.inventory().parameters().size(), false);
  for (const UnitLayout& unit : job.vote_plan.units)
    for (const UnitLayout::Entry& entry : unit.entries) voted[static_cast<size_t>(entry.tensor)] = true;
  std::vector<bool> averaged(voted.size(), false);
  for (const UnitLayout& unit : job.plan.units)
    for (const UnitLayout::Entry& entry : unit.entries) averaged[static_cast<size_t>(entry.tensor)] = true;
  for (size_t i = 0; i < voted.size(); ++i) {
    const int index = static_cast<int>(i);
    const std::string& name = job.parameter(index).name;
    if (voted[i] && averaged[i]) throw ConfigError(text("parameter ", name, " lies in the plan of means and in that of votes"));
    if (job.votes_on(index) && !voted[i])
      throw ConfigError(text("parameter ", name, " has rule ", job.rules.rules[static_cast<size_t>(job.rule_of(index))]->name(),
                             ", which agrees by vote, but does not lie in the plan of votes"));
    if (voted[i] && !job.votes_on(index))
      throw ConfigError(text("parameter ", name, " lies in the plan of votes, but no rule that agrees by vote updates it"));
  }
}

}  // namespace

void check_votes(const ShardJob& job) {
  const Plan& votes = job.vote_plan;
  check_members(job);
  if (votes.units.empty()) return;
  if (votes.slots != job.grid.shards || votes.replicas != 1)
    throw ConfigError(text("the plan of votes has ", votes.slots, " slots in ", votes.replicas, " replicas, expected one per shard, ",
                           job.grid.shards, ", in 1"));
  if (votes.units.size() != job.plan.units.size() || votes.window_of_unit != job.plan.window_of_unit ||
      votes.cut_elements != job.plan.cut_elements)
    throw ConfigError("the plans of means and of votes differ in units, windows or cut_elements");
  std::string rule;  // one that votes
  for (const auto& each : job.rules.rules)
    if (each->agreement() == Agreement::vote) rule = each->name();
  if (rule.empty()) return;
  if (!job.owned())
    throw ConfigError(text("distribution.method ", name_of(job.options.distribution), " averages every gradient, but rule ", rule,
                           " agrees by vote; choose distribution.method owner"));
  if (job.grid.shards > 1) return;
  for (int unit = 0; unit < job.units(); ++unit)
    if ((job.options.unit_stages.empty() ? job.options.stage : job.options.unit_stages[static_cast<size_t>(unit)]) == 3 &&
        votes.units[static_cast<size_t>(unit)].elements > 0)
      throw ConfigError(text("distribution.stage 3 needs shards to spread unit ", job.unit_name(unit), " over, but rule ", rule,
                             " votes with every rank as a replica of its own; choose stage 1 or 2, or fewer distribution.replicas"));
}

}  // namespace dmuon
