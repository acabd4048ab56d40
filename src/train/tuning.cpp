#include "train/tuning.h"

#include <algorithm>

#include "dmuon/backend/measurement_key.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"

namespace dmuon {
namespace {

// The configuration behind entry `rule` of the table (make_rules: matrix, auxiliary, overrides).
const RuleConfiguration& configuration_of(const OptimizerConfiguration& optimizer, size_t rule) {
  if (rule == 0) return optimizer.matrix;
  if (rule == 1) return optimizer.auxiliary;
  return optimizer.overrides[rule - 2];
}

// Whole tensors of a rule by shape, and how many of each a rank has to expect in one call: its share of the fullest window.
std::vector<ShapeCount> shapes_of(const TuningRequest& request, size_t rule) {
  std::vector<ShapeCount> shapes;
  const UpdateRule& whole = *request.table.rules[rule];
  if (whole.cutting() != Cutting::whole) return shapes;
  const int slots = whole.agreement() == Agreement::vote ? request.vote_slots : request.slots;
  std::vector<ShapeCount> window;  // parameters are in the order of their units
  int current = -1;
  const auto close = [&] {
    for (const ShapeCount& each : window) {
      const int64_t share = divide_up(each.count, slots);
      const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const ShapeCount& other) { return other.shape == each.shape; });
      if (found == shapes.end())
        shapes.push_back({each.shape, share});
      else
        found->count = std::max(found->count, share);
    }
    window.clear();
  };
  for (size_t i = 0; i < request.inventory.parameters().size(); ++i) {
    const ParameterDeclaration& parameter = request.inventory.parameters()[i];
    if (request.table.rule_of[i] != static_cast<int>(rule)) continue;
    if (parameter.unit / request.window_units != current) close();
    current = parameter.unit / request.window_units;
    const Shape shape = update_shape(whole, parameter.name, parameter.shape, parameter.heads);
    const auto found = std::find_if(window.begin(), window.end(), [&](const ShapeCount& each) { return each.shape == shape; });
    if (found == window.end())
      window.push_back({shape, 1});
    else
      ++found->count;
  }
  close();
  return shapes;
}

}  // namespace

Path cache_directory(const TuningConfiguration& configuration) {
  return configuration.cache_directory.empty() ? default_cache_directory() : Path(configuration.cache_directory);
}

namespace {

// Measures on this rank: one entry per rule.
Json measure(Backend& backend, const TuningRequest& request) {
  const Configuration& configuration = request.configuration;
  const Json stored = request.stored.empty() ? Json::array() : parse_json(request.stored, "the checkpoint's tuning.json");
  std::unique_ptr<MeasurementCache> cache;
  Json all = Json::array();
  for (size_t rule = 0; rule < request.table.rules.size(); ++rule) {
    const bool numerics = configuration_of(configuration.optimizer, rule).tune_numerics;
    const std::vector<ShapeCount> shapes = shapes_of(request, rule);
    Json choices;
    if (numerics && rule < stored.as_array().size() && !stored.as_array()[rule].is_null()) {
      choices = stored.as_array()[rule];
    } else if ((configuration.tuning.enabled || numerics) && !shapes.empty()) {
      if (!cache)
        cache = std::make_unique<MeasurementCache>("newton_schulz", measurement_key(backend), cache_directory(configuration.tuning));
      choices = request.table.rules[rule]->tune(backend, shapes, cache.get());
    }
    all.push_back(std::move(choices));
  }
  if (cache) {
    cache->save();
    log_information(text("tuned Newton-Schulz; measurements are kept in ", cache->path().empty() ? "memory" : cache->path().string()));
  }
  return all;
}

void adopt(const TuningRequest& request, const Json& choices) {
  for (size_t rule = 0; rule < request.table.rules.size(); ++rule)
    if (const Json& choice = choices.as_array()[rule]; !choice.is_null()) request.table.rules[rule]->adopt(choice);
}

// The first rank whose measurements are worth as much as this rank's own: same hardware, libraries and threads.
int leader_of(Communicator& world, const Backend& backend) {
  const MeasurementKey key = measurement_key(backend);
  const std::vector<std::string> keys =
      world.all_gather_text(text(key.hardware, "\n", key.instruction_set, "\n", key.libraries, "\n", key.threads));
  const auto mine = keys.begin() + world.rank();
  return static_cast<int>(std::find(keys.begin(), keys.end(), *mine) - keys.begin());
}

}  // namespace

Json tune_rules(Communicator& world, Backend& backend, const TuningRequest& request) {
  const int leader = leader_of(world, backend);
  std::string mine;
  agreed(world, [&] {
    if (world.rank() == 0) mine = measure(backend, request).dump();
  });
  const Json common = parse_json(world.broadcast_text(mine, 0), "rank 0's tuning");
  agreed(world, [&] {
    adopt(request, common);
    // What changes bits is rank 0's choice everywhere; the rest is measured once on each other kind of device.
    if (leader == world.rank() && leader != 0 && request.stored.empty()) mine = measure(backend, request).dump();
  });
  const std::vector<std::string> measured = world.all_gather_text(mine);
  agreed(world, [&] {
    const std::string& of_leader = measured[static_cast<size_t>(leader)];
    if (leader != 0 && leader != world.rank() && !of_leader.empty())
      adopt(request, parse_json(of_leader, text("the tuning of rank ", leader)));
  });
  return common;
}

}  // namespace dmuon
