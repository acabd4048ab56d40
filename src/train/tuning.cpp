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

Json tune_rules(Communicator& world, Backend& backend, const TuningRequest& request) {
  const Configuration& configuration = request.configuration;
  std::string mine;
  agreed(world, [&] {
    if (world.rank() != 0) return;
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
    mine = all.dump();
  });
  const Json choices = parse_json(world.broadcast_text(mine, 0), "rank 0's tuning");
  agreed(world, [&] {
    for (size_t rule = 0; rule < request.table.rules.size(); ++rule)
      if (const Json& choice = choices.as_array()[rule]; !choice.is_null()) request.table.rules[rule]->adopt(choice);
  });
  return choices;
}

}  // namespace dmuon
