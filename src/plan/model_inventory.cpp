#include "dmuon/plan/model_inventory.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "plan/strict_object.h"

namespace dmuon {
namespace {

constexpr int64_t largest_inventory = 1'000'000;  // tensors
constexpr int64_t largest_elements = int64_t{1} << 50;
constexpr std::array roles{TensorRole::matrix, TensorRole::embedding, TensorRole::head, TensorRole::vector};

struct TensorRow {
  std::string name;
  Shape shape;
  TensorRole role;
  int64_t count;  // 0: one, with the name as it stands
};

Shape read_shape(StrictObject& object) {
  const Json::Array& sizes = object.array_at("shape");
  if (sizes.empty() || sizes.size() > 4) object.fail("shape", text("expected 1 to 4 sizes, found ", sizes.size()));
  std::vector<int64_t> values;
  int64_t elements = 1;
  for (const Json& size : sizes) {
    const bool positive = size.is_integer() && !size.is_negative() && size.as_unsigned() > 0 && size.as_unsigned() < (uint64_t{1} << 40);
    const auto product = positive ? checked_multiply(elements, size.as_integer()) : std::nullopt;
    if (!product || *product > int64_t{1} << 45)
      object.fail("shape", text("expected positive sizes with at most 2^45 elements, found ", Json(sizes).dump()));
    elements = *product;
    values.push_back(size.as_integer());
  }
  return Shape(values);
}

TensorRow read_tensor(StrictObject object) {
  TensorRow row{object.text_at("name"), read_shape(object), TensorRole::matrix, object.integer_or("count", 1, largest_inventory, 0)};
  const std::string role = object.text_at("role");
  const auto found = std::find_if(roles.begin(), roles.end(), [&](TensorRole r) { return name_of(r) == role; });
  if (found == roles.end()) object.fail("role", text("\"", role, "\" is not one of matrix, embedding, head, vector"));
  row.role = *found;
  if (row.role == TensorRole::matrix && row.shape.rank() != 2 && row.shape.rank() != 3)
    object.fail("shape", text("a matrix has two sizes, or three where each head is one, found ", row.shape.to_string()));
  object.finish();
  return row;
}

}  // namespace

std::string_view name_of(TensorRole role) {
  switch (role) {
    case TensorRole::matrix:
      return "matrix";
    case TensorRole::embedding:
      return "embedding";
    case TensorRole::head:
      return "head";
    case TensorRole::vector:
      return "vector";
  }
  return "";
}

int64_t ModelInventory::elements() const {
  int64_t sum = 0;
  for (const InventoryTensor& tensor : tensors) sum += tensor.shape.elements();
  return sum;
}

int64_t ModelInventory::matrices() const {
  return std::count_if(tensors.begin(), tensors.end(), [](const InventoryTensor& t) { return t.role == TensorRole::matrix; });
}

int64_t ModelInventory::matrix_elements() const {
  int64_t sum = 0;
  for (const InventoryTensor& tensor : tensors)
    if (tensor.role == TensorRole::matrix) sum += tensor.shape.elements();
  return sum;
}

int64_t ModelInventory::unit_elements(int unit) const {
  int64_t sum = 0;
  for (const InventoryTensor& tensor : tensors)
    if (tensor.unit == unit) sum += tensor.shape.elements();
  return sum;
}

ModelInventory inventory_from_json(const Json& json, std::string_view origin) {
  StrictObject file(json, std::string(origin));
  ModelInventory inventory;
  inventory.name = file.text_at("name");
  inventory.source = file.text_at("source");
  inventory.inferred = file.flag_or("inferred", false);
  inventory.note = file.text_or("note", "");
  if (inventory.inferred && inventory.note.empty()) file.fail("note", "inferred shapes need the reasons for them");
  const size_t units = file.array_at("units").size();
  if (units == 0) file.fail("units", "expected at least one unit");
  std::unordered_set<std::string> unit_names, names;
  int64_t elements = 0;
  for (size_t u = 0; u < units; ++u) {
    StrictObject unit = file.element("units", u);
    const std::string unit_name = unit.text_at("name");
    const int64_t copies = unit.integer_or("count", 1, largest_inventory, 0);
    std::vector<TensorRow> rows;
    for (size_t t = 0; t < unit.array_at("tensors").size(); ++t) rows.push_back(read_tensor(unit.element("tensors", t)));
    if (rows.empty()) unit.fail("tensors", "expected at least one tensor");
    unit.finish();
    for (int64_t copy = 0; copy < std::max<int64_t>(copies, 1); ++copy) {
      const std::string full_unit = copies == 0 ? unit_name : text(unit_name, ".", copy);
      if (!unit_names.insert(full_unit).second) unit.fail("name", text("there are two units \"", full_unit, "\""));
      for (const TensorRow& row : rows) {
        for (int64_t k = 0; k < std::max<int64_t>(row.count, 1); ++k) {
          InventoryTensor tensor{text(full_unit, ".", row.name), row.shape, row.role, static_cast<int>(inventory.units.size())};
          if (row.count > 0) tensor.name += text(".", k);
          if (!names.insert(tensor.name).second) unit.fail("tensors", text("there are two tensors \"", tensor.name, "\""));
          elements += row.shape.elements();  // at most 2^45 at a time
          if (names.size() > static_cast<size_t>(largest_inventory) || elements > largest_elements)
            unit.fail("count", text("more than ", largest_inventory, " tensors or 2^50 elements in all"));
          inventory.tensors.push_back(std::move(tensor));
        }
      }
      inventory.units.push_back(full_unit);
    }
  }
  file.finish();
  return inventory;
}

ModelInventory load_inventory(const std::filesystem::path& path) {
  return inventory_from_json(parse_json(read_file(path, int64_t{64} << 20), path.string()), path.string());
}

ModelInventory divided(const ModelInventory& inventory, int64_t divisor) {
  if (divisor < 1) throw ConfigError(text("sizes of ", inventory.name, ": expected a divisor of at least 1, found ", divisor));
  ModelInventory result = inventory;
  if (divisor > 1) result.name = text(inventory.name, " / ", divisor);
  for (InventoryTensor& tensor : result.tensors) {
    std::vector<int64_t> sizes;
    for (int64_t size : tensor.shape.sizes()) {
      const bool heads = sizes.empty() && tensor.role == TensorRole::matrix && tensor.shape.rank() == 3;
      sizes.push_back(heads ? size : divide_up(size, divisor));
    }
    tensor.shape = Shape(sizes);
  }
  return result;
}

}  // namespace dmuon
