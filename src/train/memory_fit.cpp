#include "train/memory_fit.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/memory_accounting.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"

namespace dmuon {
namespace {

struct Bound {
  std::optional<int64_t> available;
  int64_t needed = 0;
  std::vector<int> ranks;

  void add(const std::vector<RankMemory>& all, int rank, const std::optional<int64_t>& says) {
    const int64_t need = all[static_cast<size_t>(rank)].needed;
    needed = need > std::numeric_limits<int64_t>::max() - needed ? std::numeric_limits<int64_t>::max() : needed + need;
    if (says) available = std::max(available.value_or(0), *says);
    ranks.push_back(rank);
  }
};

Json to_json(const RankMemory& memory) {
  Json out = Json::object();
  const auto set = [&](const char* name, const std::optional<int64_t>& value) {
    if (value) out.set(name, *value);
  };
  out.set("needed", memory.needed);
  set("machine", memory.available.machine);
  set("control_group", memory.available.control_group);
  out.set("control_group_path", memory.available.control_group_path);
  set("process", memory.available.process);
  return out;
}

RankMemory rank_memory_from_json(const Json& json, std::string host) {
  const auto get = [&](const char* name) -> std::optional<int64_t> {
    const Json* value = json.find(name);
    return value != nullptr ? std::optional(value->as_integer()) : std::nullopt;
  };
  return {std::move(host),
          json.at("needed").as_integer(),
          {get("machine"), get("control_group"), json.at("control_group_path").as_string(), get("process")}};
}

}  // namespace

MemoryFit judge_memory(const std::vector<RankMemory>& ranks) {
  std::map<std::string, Bound> bounds;  // by what they are of; sorted, so that every rank finds the same
  std::map<std::string, std::string> names;
  const auto add = [&](const std::string& key, std::string name, size_t rank, const std::optional<int64_t>& says) {
    bounds[key].add(ranks, static_cast<int>(rank), says);
    names.emplace(key, std::move(name));
  };
  for (size_t r = 0; r < ranks.size(); ++r) {
    const AvailableMemory& available = ranks[r].available;
    add("host " + ranks[r].host, "MemAvailable of /proc/meminfo and free swap", r, available.machine);
    if (available.control_group)
      add(text("group ", ranks[r].host, " ", available.control_group_path), text("the limit of ", available.control_group_path), r,
          available.control_group);
    if (available.process) add(text("process ", r), "the limit of addresses of a process, ulimit -v", r, available.process);
  }
  MemoryFit tightest;
  for (const auto& [key, bound] : bounds) {
    if (!bound.available) continue;
    if (!tightest.bound.empty() && *bound.available - bound.needed >= tightest.available - tightest.needed) continue;
    const auto more = [&](int a, int b) { return ranks[static_cast<size_t>(a)].needed < ranks[static_cast<size_t>(b)].needed; };
    tightest = {bound.needed, *bound.available, static_cast<int>(bound.ranks.size()),
                *std::max_element(bound.ranks.begin(), bound.ranks.end(), more), names[key]};
  }
  return tightest;
}

void require_memory(Communicator& world, const MemoryStatistics& predicted) {
  RankMemory mine{world.host(world.rank()), predicted.total.peak, available_memory()};
  std::vector<RankMemory> ranks;
  for (const std::string& told : world.all_gather_text(to_json(mine).dump()))
    ranks.push_back(rank_memory_from_json(parse_json(told, "memory of a rank"), world.host(static_cast<int>(ranks.size()))));
  const MemoryFit fit = judge_memory(ranks);
  if (fit.fits()) return;
  std::string table, remedies;
  if (world.rank() == fit.largest_rank) {
    table = describe_memory(predicted);
    remedies = memory_remedies(largest_category(predicted));
  }
  table = world.broadcast_text(table, fit.largest_rank);
  remedies = world.broadcast_text(remedies, fit.largest_rank);
  throw AgreedError(ExitCode::device,
                    text("out of memory before the start: the run needs ", format_bytes(fit.needed), " for ",
                         fit.ranks == 1 ? "one rank" : text(fit.ranks, " ranks"), " on ", world.host(fit.largest_rank), ", available are ",
                         format_bytes(fit.available), " (", fit.bound, ")\npredicted for rank ", fit.largest_rank, ":\n", table,
                         "remedy: ", remedies, "; --dry-run tells what a configuration needs"));
}

}  // namespace dmuon
