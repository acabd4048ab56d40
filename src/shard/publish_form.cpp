#include "shard/publish_form.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr GatherForm forms[] = {GatherForm::all_gather, GatherForm::broadcasts, GatherForm::padded};
constexpr const char* names[] = {"all_gather", "broadcasts", "padded"};
constexpr int repetitions = 3;  // the first warms up

double time_form(Level& level, const Tensor& buffer, const std::vector<int64_t>& cuts, GatherForm form) {
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    level.group->barrier(*level.stream);
    level.stream->synchronize();
    const auto start = std::chrono::steady_clock::now();
    level.group->all_gather_v(*level.stream, buffer, cuts, form);
    level.stream->synchronize();
    if (i > 0) best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// The digit of the form.
char fastest(Level& level, const Tensor& data, const std::vector<int64_t>& cuts) {
  double best = 1e30;
  size_t form = 0;
  for (size_t f = 0; f < std::size(forms); ++f) {
    const double seconds = time_form(level, data, cuts, forms[f]);
    // Another form must pay: equal costs are decided by noise otherwise.
    if (seconds < best * (f == 0 ? 1.0 : 0.9)) {
      best = seconds;
      form = f;
    }
  }
  return static_cast<char>('0' + form);
}

// Ranks of one node reach each other's memory on a host: there is no form to choose.
bool reach_each_other(const ShardJob& job, const Level& level) {
  if (job.clock != nullptr) return false;
  for (int r = 1; r < level.group->size(); ++r)
    if (level.group->node(r) != level.group->node(0)) return false;
  return true;
}

}  // namespace

std::vector<GatherForm> choose_publish_forms(ShardJob& job, UnitStore& store) {
  std::vector<GatherForm> chosen(static_cast<size_t>(job.region_count()), job.options.publish_form);
  if (job.options.publish_form != GatherForm::automatic || job.replicated() || job.backend.shape_only()) return chosen;
  std::map<std::pair<bool, std::vector<int64_t>>, size_t> measured;  // cuts in the plan -> digit
  std::string digits;
  const auto key_of = [&](const Region& region) {
    return std::pair(region.vote, job.plan_of(region).units[static_cast<size_t>(region.unit)].cuts);
  };
  for (const UnitBuffer& unit : job.buffers)
    for (const Region& region : unit.regions) {
      if (!region.moves() || measured.count(key_of(region)) > 0) continue;
      measured[key_of(region)] = digits.size();
      const bool column = region.between_nodes();
      Level& level = column ? job.parameters.column : job.parameters.shard;
      const Tensor& data = column ? store.memory(region).coarse : store.memory(region).full;
      digits +=
          !data.defined() || reach_each_other(job, level) ? '0' : fastest(level, data, column ? region.column_cuts : region.shard_cuts);
    }
  if (digits.empty()) return chosen;
  digits = job.world.broadcast_text(digits, 0);
  for (const UnitBuffer& unit : job.buffers)
    for (const Region& region : unit.regions)
      if (region.moves()) chosen[static_cast<size_t>(region.index)] = forms[static_cast<size_t>(digits[measured[key_of(region)]] - '0')];
  if (job.world.rank() == 0) {
    std::string list;
    for (size_t f = 0; f < std::size(forms); ++f)
      if (const auto count = std::count(chosen.begin(), chosen.end(), forms[f]); count > 0)
        list += text(list.empty() ? "" : ", ", count, " of form ", names[f]);
    log_debug(text("publishing: ", list));
  }
  return chosen;
}

}  // namespace dmuon
