#include <limits>

#include "dmuon/core/error.h"
#include "plan/plan_support.h"
#include "plan/work.h"

using namespace dmuon;

TEST_CASE("the cheapest batches are found, between measured sizes by interpolation") {
  const ShapeCost measured{0, Shape{8, 8}, {{1, 1.0}, {2, 1.5}, {4, 3.5}}};
  const BatchTable table = make_batch_table(7, &measured, 99.0);
  // 3 as a batch costs 2.5 like 2 + 1; 4 costs 3 as two pairs.
  CHECK(table.cost == std::vector<double>{0.0, 1.0, 1.5, 2.5, 3.0, 4.0, 4.5, 5.5});
  CHECK(table.batches(4) == std::vector<int>{2, 2});
  CHECK(table.batches(7).size() <= 4);
  CHECK(table.sizes == std::vector<int>{1, 2});
  const BatchTable flat = make_batch_table(3, nullptr, 2.0);
  CHECK(flat.cost == std::vector<double>{0.0, 2.0, 4.0, 6.0});
  CHECK(flat.batches(3) == std::vector<int>{3});
  CHECK(make_batch_table(0, &measured, 1.0).cost == std::vector<double>{0.0});
}

TEST_CASE("the cheapest batches match an exhaustive search") {
  const ShapeCost measured{0, Shape{8, 8}, {{1, 1.0}, {2, 1.7}, {3, 2.2}, {5, 4.1}}};
  const double of_size[] = {0.0, 1.0, 1.7, 2.2, 3.15, 4.1};
  const BatchTable table = make_batch_table(12, &measured, 1.0);
  for (int n = 1; n <= 12; ++n) {
    double best = 1e9;
    const std::function<void(int, int, double)> search = [&](int left, int largest, double cost) {
      if (left == 0) best = std::min(best, cost);
      for (int size = 1; size <= std::min(left, largest); ++size) search(left - size, size, cost + of_size[size]);
    };
    search(n, 5, 0.0);
    CHECK(table.cost[static_cast<size_t>(n)] == Approx(best));
    double sum = 0.0;
    int count = 0;
    for (int size : table.batches(n)) sum += of_size[size], count += size;
    CHECK(sum == Approx(best));
    CHECK(count == n);
  }
}

TEST_CASE("a file of costs is read as it was written, and a bad one names what is wrong") {
  CostModel model({{"a processor", "avx2", "a library 1.2", 4}, "float32", "0123456789abcdef"});
  model.add({0, Shape{64, 32}, {{1, 0.25}, {2, 1.0 / 3.0}}});
  model.add({1, Shape{64, 32}, {{1, 0.5}}});
  const CostModel read = CostModel::from_json(parse_json(model.to_json().dump(2), "costs"), "costs");
  CHECK(read.to_json() == model.to_json());
  CHECK(read.key().dtype == "float32");
  CHECK(read.key().machine.hardware == "a processor");
  REQUIRE(read.find(0, Shape{64, 32}) != nullptr);
  CHECK(read.find(0, Shape{64, 32})->batches == std::vector<BatchCost>{{1, 0.25}, {2, 1.0 / 3.0}});
  CHECK(read.find(0, Shape{32, 64}) == nullptr);

  using Catch::Contains;
  CHECK_THROWS_WITH(model.add({0, Shape{64, 32}, {{1, 1.0}}}), Contains("[64, 32] is given twice"));
  CHECK_THROWS_WITH(model.add({0, Shape{1, 2}, {{2, 1.0}}}), Contains("does not start with a batch of 1"));
  CHECK_THROWS_WITH(model.add({0, Shape{1, 2}, {{1, 1.0}, {1, 1.0}}}), Contains("do not ascend"));
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    CHECK_THROWS_AS(model.add({0, Shape{1, 2}, {{1, bad}}}), ConfigError);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string json = model.to_json().dump();
    const size_t at = json.find(from);
    REQUIRE(at != std::string::npos);
    json.replace(at, from.size(), to);
    return CostModel::from_json(parse_json(json, "x"), "cache/costs.json");
  };
  CHECK_THROWS_WITH(changed("\"version\":1", "\"version\":7"), Contains("cache/costs.json") && Contains("version 7"));
  CHECK_THROWS_AS(changed("\"shape\":[64,32]", "\"shape\":[-64,32]"), ConfigError);
  CHECK_THROWS_AS(changed("\"batch\":2", "\"batch\":99999999999"), ConfigError);
  CHECK_THROWS_AS(changed("\"dtype\"", "\"type\""), ConfigError);
}
