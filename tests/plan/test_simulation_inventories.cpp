// Inventory files: the published totals, and what a damaged file is told.
#include <map>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/model_inventory.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {

ModelInventory shipped(const std::string& name) {
  return load_inventory(testing::source_directory() + "/configs/inventories/" + name + ".json");
}

std::string with_tensor(const std::string& tensor) {
  return R"({"name": "m", "source": "s", "units": [{"name": "u", "count": 2, "tensors": [)" + tensor + "]}]}";
}

void refused(const std::string& json, const std::string& place, const std::string& problem) {
  INFO(json);
  CHECK_THROWS_AS(inventory_from_json(parse_json(json, "x.json"), "x.json"), ConfigError);
  CHECK_THROWS_WITH(inventory_from_json(parse_json(json, "x.json"), "x.json"),
                    Catch::Contains("x.json: " + place) && Catch::Contains(problem));
}

}  // namespace

TEST_CASE("inventories have the published numbers of parameters and matrices") {
  struct Published {
    int64_t parameters, matrices;
  };
  const std::map<std::string, Published> published{{"gpt2-124m", {124439808, 72}},      {"qwen2.5-0.5b", {494032768, 168}},
                                                   {"qwen2.5-1.5b", {1543714304, 196}}, {"qwen2.5-7b", {7615616512, 196}},
                                                   {"llama-3.2-3b", {3212749824, 196}}, {"llama-3.1-8b", {8030261248, 224}}};
  for (const auto& [name, expected] : published) {
    INFO(name);
    const ModelInventory inventory = shipped(name);
    CHECK(inventory.elements() == expected.parameters);
    CHECK(inventory.matrices() == expected.matrices);
    CHECK_FALSE(inventory.inferred);
  }
}

TEST_CASE("Wall-OSS-0.5 is the published table of 417 matrices") {
  const ModelInventory inventory = shipped("wall-oss-0.5");
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (const InventoryTensor& tensor : inventory.tensors)
    if (tensor.role == TensorRole::matrix) ++counts[{tensor.shape[0], tensor.shape[1]}];
  const std::map<std::pair<int64_t, int64_t>, int> expected{
      {{2560, 2048}, 36}, {{2048, 2048}, 36}, {{22016, 2048}, 36}, {{2048, 11008}, 36}, {{2560, 1024}, 36},
      {{1024, 1024}, 36}, {{4096, 1024}, 36}, {{1024, 2048}, 36},  {{3840, 1280}, 32},  {{1280, 1280}, 32},
      {{6912, 1280}, 32}, {{1280, 3456}, 32}, {{5120, 5120}, 1}};
  CHECK(counts == expected);
  CHECK(inventory.matrices() == 417);
  CHECK(static_cast<double>(inventory.matrix_elements()) == Approx(3.79e9).epsilon(0.002));
}

TEST_CASE("inferred inventories say so and why, and have the published sizes of their parts") {
  const ModelInventory pi0 = shipped("pi0"), world_model = shipped("wall-wm");
  for (const ModelInventory* inventory : {&pi0, &world_model}) {
    CHECK(inventory->inferred);
    CHECK(inventory->note.size() > 50);
  }
  CHECK(static_cast<double>(pi0.elements()) == Approx(3.3e9).epsilon(0.03));  // the paper of Pi0
  int64_t video = 0;                                                          // Wan2.1-T2V-14B: 14.29 billion
  for (const InventoryTensor& tensor : world_model.tensors)
    if (tensor.name.rfind("action", 0) != 0) video += tensor.shape.elements();
  CHECK(static_cast<double>(video) == Approx(14.29e9).epsilon(0.01));
}

TEST_CASE("repeated units and tensors are written out with numbers") {
  const std::string tensors =
      R"({"name": "w", "shape": [3, 5], "role": "matrix"}, {"name": "b", "shape": [7], "role": "vector", "count": 2})";
  const ModelInventory inventory = inventory_from_json(parse_json(with_tensor(tensors), "x.json"), "x.json");
  std::vector<std::string> names;
  for (const InventoryTensor& tensor : inventory.tensors) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"u.0.w", "u.0.b.0", "u.0.b.1", "u.1.w", "u.1.b.0", "u.1.b.1"});
  CHECK(inventory.units == std::vector<std::string>{"u.0", "u.1"});
  CHECK(inventory.elements() == 2 * (15 + 14));
  CHECK(inventory.unit_elements(1) == 29);
}

TEST_CASE("a divided model has every size divided, rounded up") {
  const ModelInventory whole = shipped("wall-oss-0.5"), eighth = divided(whole, 8);
  CHECK(eighth.name == "Wall-OSS-0.5 / 8");
  CHECK(eighth.matrices() == 417);
  CHECK(eighth.matrix_elements() == whole.matrix_elements() / 64);  // all its sizes are multiples of 8
  const std::string tensor = R"({"name": "w", "shape": [9, 2], "role": "matrix"})";
  CHECK(divided(inventory_from_json(parse_json(with_tensor(tensor), "x.json"), "x.json"), 4).tensors[0].shape == Shape{3, 1});
  CHECK_THROWS_AS(divided(whole, 0), ConfigError);
}

TEST_CASE("a damaged inventory is refused with file and key") {
  refused(R"([])", "", "expected an object");
  refused(R"({"source": "s", "units": []})", "name", "missing");
  refused(R"({"name": "m", "source": "s", "units": []})", "units", "at least one unit");
  refused(
      R"({"name": "m", "source": "s", "unit": 1, "units": [{"name": "u", "tensors": [{"name": "w", "shape": [2], "role": "vector"}]}]})",
      "unit", "did you mean \"units\"");
  refused(
      R"({"name": "m", "source": "s", "inferred": true, "units": [{"name": "u", "tensors": [{"name": "w", "shape": [2], "role": "vector"}]}]})",
      "note", "reasons");
  refused(R"({"name": "m", "source": "s", "units": [{"name": "u", "tensors": []}]})", "units[0].tensors", "at least one tensor");
  refused(
      R"({"name": "m", "source": "s", "units": [{"name": "u", "count": 0, "tensors": [{"name": "w", "shape": [2], "role": "vector"}]}]})",
      "units[0].count", "from 1");
  const std::string at = "units[0].tensors[0].";
  refused(with_tensor(R"({"name": "w", "role": "matrix"})"), at + "shape", "missing");
  refused(with_tensor(R"({"name": "w", "shape": 3, "role": "matrix"})"), at + "shape", "expected a list, found integer");
  refused(with_tensor(R"({"name": "w", "shape": [], "role": "vector"})"), at + "shape", "1 to 4 sizes");
  refused(with_tensor(R"({"name": "w", "shape": [3, 0], "role": "matrix"})"), at + "shape", "positive");
  refused(with_tensor(R"({"name": "w", "shape": [3, -1], "role": "matrix"})"), at + "shape", "positive");
  refused(with_tensor(R"({"name": "w", "shape": [3, 2.5], "role": "matrix"})"), at + "shape", "positive");
  refused(with_tensor(R"({"name": "w", "shape": [4294967296, 4294967296], "role": "matrix"})"), at + "shape", "2^45");
  refused(with_tensor(R"({"name": "w", "shape": [18446744073709551615, 2], "role": "matrix"})"), at + "shape", "positive");
  refused(with_tensor(R"({"name": "w", "shape": [5], "role": "matrix"})"), at + "shape", "two sizes");
  refused(with_tensor(R"({"name": "w", "shape": [5], "role": "bias"})"), at + "role", "\"bias\" is not one of");
  refused(with_tensor(R"({"name": "", "shape": [5], "role": "vector"})"), at + "name", "expected text");
  refused(with_tensor(R"({"name": "w", "shape": [5], "role": "vector", "dtype": "f32"})"), at + "dtype", "unknown key");
  refused(with_tensor(R"({"name": "w", "shape": [5], "role": "vector"}, {"name": "w", "shape": [5], "role": "vector"})"),
          "units[0].tensors", "two tensors \"u.0.w\"");
  refused(with_tensor(R"({"name": "w", "shape": [5], "role": "vector", "count": 1000000})"), "units[0].count", "more than 1000000 tensors");
  refused(with_tensor(R"({"name": "w", "shape": [1048576, 16777216], "role": "vector", "count": 100})"), "units[0].count", "2^50 elements");
  CHECK_THROWS_AS(load_inventory("/nowhere/x.json"), StorageError);
}
