// The tensors of a model as a file describes them, for planning and simulating models that need not exist here.
//
// {"name": "GPT-2 124M", "source": "where the shapes come from", "inferred": false, "note": "",
//  "units": [{"name": "layers", "count": 12, "tensors": [{"name": "query.weight", "shape": [768, 768], "role": "matrix"}]}]}
//
// A unit with "count" n stands for n equal units "layers.0" ... "layers.(n - 1)"; a tensor with "count" for as many equal
// tensors "norm.0" ... of its unit. "inferred": true marks shapes that nobody has published; "note" then says why they are taken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"

namespace dmuon {

enum class TensorRole : uint8_t {
  matrix,  // hidden weight [out, in], or [heads, rows, in] of matrices that are orthogonalised one by one: updated whole by a matrix rule
  embedding,  // also a tied embedding/head pair
  head,       // untied output projection
  vector      // biases, norms, whatever an element-wise rule updates
};
std::string_view name_of(TensorRole role);

struct InventoryTensor {
  std::string name;  // with its unit: "layers.3.query.weight"
  Shape shape;
  TensorRole role = TensorRole::matrix;
  int unit = 0;
};

struct ModelInventory {
  std::string name, source, note;
  bool inferred = false;
  std::vector<std::string> units;
  std::vector<InventoryTensor> tensors;  // in file order, repeated ones written out

  int64_t elements() const;
  int64_t matrices() const;
  int64_t matrix_elements() const;
  int64_t unit_elements(int unit) const;
};

// ConfigError naming `origin` and the key: unknown or missing keys, wrong types, shapes that are not positive or whose sizes
// overflow, matrices that are neither 2-D nor 3-D, duplicate names, more than a million tensors.
ModelInventory inventory_from_json(const Json& json, std::string_view origin);
// StorageError when the file cannot be read.
ModelInventory load_inventory(const std::filesystem::path& path);

// The same model with every size divided, rounded up: small enough to run where the model is not. ConfigError when `divisor` < 1.
ModelInventory divided(const ModelInventory& inventory, int64_t divisor);

}  // namespace dmuon
