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

// Ranks of one node reach each other's memory: there is no form to choose.
bool inside_a_node(const Level& level) {
  for (int r = 1; r < level.group->size(); ++r)
    if (level.group->node(r) != level.group->node(0)) return false;
  return true;
}

}  // namespace

std::vector<GatherForm> choose_publish_forms(ShardJob& job, UnitStore& store) {
  const auto units = static_cast<size_t>(job.units());
  std::vector<GatherForm> chosen(units, job.options.publish_form);
  Level& level = job.parameters.column ? job.parameters.column : job.parameters.shard;
  if (job.options.publish_form != GatherForm::automatic || !level || job.replicated() || job.backend.shape_only()) return chosen;
  if (inside_a_node(level)) return chosen;
  std::map<std::vector<int64_t>, size_t> measured;  // cuts -> digit
  std::string digits;
  for (size_t unit = 0; unit < units; ++unit) {
    const int index = static_cast<int>(unit);
    const std::vector<int64_t> key = job.layout(index).cuts;
    if (measured.count(key) > 0) continue;
    measured[key] = digits.size();
    const UnitMemory& memory = store.unit(index);
    const bool column = static_cast<bool>(job.parameters.column);
    if (!column && !memory.full.defined()) {
      digits += '0';
      continue;
    }
    double best = 1e30;
    size_t form = 0;
    for (size_t f = 0; f < std::size(forms); ++f) {
      const double seconds =
          time_form(level, column ? memory.coarse : memory.full, column ? job.column_cuts(index) : job.coarse_cuts(index), forms[f]);
      // Another form must pay: equal costs are decided by noise otherwise.
      if (seconds < best * (f == 0 ? 1.0 : 0.9)) {
        best = seconds;
        form = f;
      }
    }
    digits += static_cast<char>('0' + form);
  }
  digits = job.world.broadcast_text(digits, 0);
  for (size_t unit = 0; unit < units; ++unit)
    chosen[unit] = forms[static_cast<size_t>(digits[measured[job.layout(static_cast<int>(unit)).cuts]] - '0')];
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
