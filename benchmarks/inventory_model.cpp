#include "inventory_model.h"

#include <algorithm>

#include "dmuon/core/error.h"

namespace dmuon::bench {
namespace {

ParameterRole role_of(TensorRole role) {
  switch (role) {
    case TensorRole::matrix:
      return ParameterRole::matrix;
    case TensorRole::embedding:
      return ParameterRole::embedding;
    case TensorRole::head:
      return ParameterRole::head;
    case TensorRole::vector:
      break;
  }
  return ParameterRole::vector;
}

}  // namespace

InventoryModel::InventoryModel(const ModelInventory& inventory, int64_t divide) {
  for (const std::string& unit : inventory.units) inventory_.add_unit(unit);
  for (const InventoryTensor& tensor : inventory.tensors) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < tensor.shape.rank(); ++i) sizes.push_back(std::max<int64_t>(1, (tensor.shape[i] + divide / 2) / divide));
    inventory_.declare(tensor.unit, tensor.name, Shape(sizes), role_of(tensor.role), initialize_normal(0.02));
  }
}

Variable InventoryModel::forward(ExecutionContext&, const Tensor&, const Tensor&, ModelCache*, bool) {
  throw ConfigError("an inventory has shapes only and cannot be run");
}

}  // namespace dmuon::bench
