#include "dmuon/nn/layers.h"

namespace dmuon {

LinearLayer LinearLayer::declare(Inventory& inventory, int unit, const std::string& name, int64_t out, int64_t in, bool with_bias,
                                 double deviation, int64_t heads) {
  LinearLayer layer;
  layer.weight = inventory.declare(unit, name + ".weight", Shape{out, in}, ParameterRole::matrix, initialize_normal(deviation), heads);
  if (with_bias) layer.bias = inventory.declare(unit, name + ".bias", Shape{out}, ParameterRole::vector, initialize_zero());
  return layer;
}

NormalizationLayer NormalizationLayer::declare(Inventory& inventory, int unit, const std::string& name, int64_t width, bool with_bias,
                                               const NormalizationOptions& options) {
  NormalizationLayer layer;
  layer.options = options;
  layer.weight = inventory.declare(unit, name + ".weight", Shape{width}, ParameterRole::vector, initialize_one());
  if (with_bias && options.kind == NormalizationKind::layer_norm)
    layer.bias = inventory.declare(unit, name + ".bias", Shape{width}, ParameterRole::vector, initialize_zero());
  return layer;
}

}  // namespace dmuon
