// What the owner's complete update of a batch of equal matrices costs: measured on this hardware, or modelled.
//
// A measured model holds, per (rule, shape), the seconds of one update of b equal matrices for a few b (1, 2, 4, ...).
// Between two measured sizes the cost is interpolated; a batch larger than the largest measured one is never planned.
// Without measurements a batch costs what its matrices cost one by one (PlanTensor::cost, e.g. FLOPs).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/measurement_cache.h"
#include "dmuon/core/shape.h"

namespace dmuon {

// What the measurements depend on. A file with another key is foreign.
struct CostKey {
  MeasurementKey machine;
  std::string dtype;  // of the orthogonalisation
  std::string rules;  // hash of the descriptions of the rules, in order
};

struct BatchCost {
  int batch = 1;
  double seconds = 0.0;  // of the whole batch
  friend bool operator==(const BatchCost&, const BatchCost&) = default;
};

struct ShapeCost {
  int rule = 0;  // index in the run's rule table
  Shape shape;
  std::vector<BatchCost> batches;  // ascending, starting with batch 1
};

// Name of the cache file that holds costs (measurement_cache.h).
inline constexpr std::string_view cost_cache_kind = "owner_update";

class CostModel {
 public:
  // Version of the file format; another one is not read.
  static constexpr int64_t version = 1;

  CostModel() = default;  // nothing measured
  explicit CostModel(CostKey key) : key_(std::move(key)) {}

  // ConfigError when a cost is not positive and finite, when sizes do not start at 1 and ascend, or when (rule, shape)
  // is there already.
  void add(ShapeCost cost);

  const CostKey& key() const { return key_; }
  const std::vector<ShapeCost>& shapes() const { return shapes_; }
  bool empty() const { return shapes_.empty(); }
  // Null when this pair was not measured.
  const ShapeCost* find(int rule, const Shape& shape) const;

  // What `cache` knows under this key, which must be for the key's machine; nothing when it knows nothing or what it has
  // is damaged (one warning line).
  static CostModel read(const MeasurementCache& cache, const CostKey& key);
  // Puts everything measured into the cache, to be saved by the caller.
  void store(MeasurementCache& cache) const;

  Json to_json() const;
  // ConfigError naming `origin` and the value: another version, missing members, numbers out of range.
  static CostModel from_json(const Json& json, std::string_view origin);

 private:
  CostKey key_;
  std::vector<ShapeCost> shapes_;
};

}  // namespace dmuon
