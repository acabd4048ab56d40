#include "dmuon/plan/cost_model.h"

#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {

void CostModel::add(ShapeCost cost) {
  const auto what = [&] { return text("cost of rule ", cost.rule, ", shape ", cost.shape.to_string()); };
  if (find(cost.rule, cost.shape) != nullptr) throw ConfigError(text(what(), " is given twice"));
  if (cost.batches.empty() || cost.batches.front().batch != 1) throw ConfigError(text(what(), " does not start with a batch of 1"));
  for (size_t i = 0; i < cost.batches.size(); ++i) {
    const BatchCost& point = cost.batches[i];
    if (i > 0 && point.batch <= cost.batches[i - 1].batch) throw ConfigError(text(what(), ": batch sizes do not ascend"));
    if (!std::isfinite(point.seconds) || point.seconds <= 0.0)
      throw ConfigError(text(what(), ": a batch of ", point.batch, " takes ", point.seconds, " s, expected a positive time"));
  }
  shapes_.push_back(std::move(cost));
}

const ShapeCost* CostModel::find(int rule, const Shape& shape) const {
  for (const ShapeCost& cost : shapes_)
    if (cost.rule == rule && cost.shape == shape) return &cost;
  return nullptr;
}

namespace {

std::string entry_name(const CostKey& key) { return text("rules ", key.rules, ", ", key.dtype); }

}  // namespace

CostModel CostModel::read(const MeasurementCache& cache, const CostKey& key) {
  const Json* entry = cache.find(entry_name(key));
  if (entry == nullptr) return CostModel(key);
  try {
    return from_json(*entry, cache.path().string());
  } catch (const ConfigError& error) {
    log_warning(text("measured costs are ignored and measured again: ", error.what()));
    return CostModel(key);
  }
}

void CostModel::store(MeasurementCache& cache) const { cache.set(entry_name(key_), to_json()); }

Json CostModel::to_json() const {
  Json key = Json::object();
  key.set("hardware", key_.machine.hardware);
  key.set("instruction_set", key_.machine.instruction_set);
  key.set("libraries", key_.machine.libraries);
  key.set("dtype", key_.dtype);
  key.set("rules", key_.rules);
  key.set("threads", key_.machine.threads);
  Json shapes = Json::array();
  for (const ShapeCost& cost : shapes_) {
    Json sizes = Json::array();
    for (int64_t size : cost.shape.sizes()) sizes.push_back(size);
    Json batches = Json::array();
    for (const BatchCost& point : cost.batches) {
      Json row = Json::object();
      row.set("batch", point.batch);
      row.set("seconds", point.seconds);
      batches.push_back(row);
    }
    Json row = Json::object();
    row.set("rule", cost.rule);
    row.set("shape", sizes);
    row.set("batches", batches);
    shapes.push_back(row);
  }
  Json out = Json::object();
  out.set("version", version);
  out.set("key", key);
  out.set("shapes", shapes);
  return out;
}

CostModel CostModel::from_json(const Json& json, std::string_view origin) {
  constexpr int64_t largest_batch = 1 << 20;
  try {
    if (json.at("version").as_integer() != version)
      throw ConfigError(text("version ", json.at("version").as_integer(), " of the cost file's format, expected ", version));
    const Json& key = json.at("key");
    CostModel model({{key.at("hardware").as_string(), key.at("instruction_set").as_string(), key.at("libraries").as_string(),
                      static_cast<int>(key.at("threads").as_integer())},
                     key.at("dtype").as_string(),
                     key.at("rules").as_string()});
    for (const Json& row : json.at("shapes").as_array()) {
      ShapeCost cost;
      cost.rule = static_cast<int>(row.at("rule").as_integer());
      std::vector<int64_t> sizes;
      for (const Json& size : row.at("shape").as_array()) sizes.push_back(size.as_integer());
      cost.shape = Shape(sizes);
      for (const Json& point : row.at("batches").as_array()) {
        const int64_t batch = point.at("batch").as_integer();
        if (batch < 1 || batch > largest_batch) throw ConfigError(text("a batch of ", batch, ", expected 1 to ", largest_batch));
        cost.batches.push_back({static_cast<int>(batch), point.at("seconds").as_number()});
      }
      model.add(std::move(cost));
    }
    return model;
  } catch (const Error& error) {
    throw ConfigError(text(origin, ": ", error.what()));
  }
}

}  // namespace dmuon
