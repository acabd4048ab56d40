#include <cmath>

#include "dmuon/nn/parameter.h"
#include "support/catch.h"

using namespace dmuon;
using Catch::Matchers::Contains;

TEST_CASE("names and units of an inventory are checked") {
  Inventory inventory;
  const int unit = inventory.add_unit("blocks.0");
  inventory.declare(unit, "a.weight", Shape{3, 4}, ParameterRole::matrix, initialize_normal(0.02));
  inventory.declare(unit, "statistics", Shape{5}, ParameterRole::buffer, initialize_one());
  CHECK(inventory.elements() == 17);
  CHECK(inventory.units()[0].parameters == std::vector<int>{0, 1});
  CHECK_FALSE(inventory.find("statistics")->state->requires_gradient);
  CHECK_THROWS_AS(inventory.declare(unit, "a.weight", Shape{1}, ParameterRole::vector, initialize_zero()), ConfigError);
  CHECK_THROWS_WITH(inventory.declare(unit, "a.weight", Shape{1}, ParameterRole::vector, initialize_zero()), Contains("a.weight"));
  CHECK_THROWS_WITH(inventory.declare(1, "b", Shape{1}, ParameterRole::vector, initialize_zero()), Contains("unit 1"));
  CHECK(inventory.parameters().size() == 2);
}

TEST_CASE("initial values depend on seed, name and index only") {
  Inventory inventory;
  const int unit = inventory.add_unit("u");
  inventory.declare(unit, "a", Shape{7, 11}, ParameterRole::matrix, initialize_normal(0.02));
  inventory.declare(unit, "b", Shape{7, 11}, ParameterRole::matrix, initialize_normal(0.02));
  inventory.declare(unit, "one", Shape{3}, ParameterRole::vector, initialize_one());
  const ParameterDeclaration& a = *inventory.find("a");
  std::vector<float> whole(77);
  fill_initial(a, 5, 0, 77, whole.data());
  const Random random(5, RandomStream::initialization, hash_name("a"));
  for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == static_cast<float>(0.02 * random.normal(i)));
  // Any range gives the same values: odd and even starts and ends.
  for (int64_t first = 0; first < 4; ++first)
    for (int64_t count : {0, 1, 2, 3, 70}) {
      std::vector<float> part(static_cast<size_t>(count));
      fill_initial(a, 5, first, count, part.data());
      CHECK(part == std::vector<float>(whole.begin() + first, whole.begin() + first + count));
    }
  std::vector<float> other(77), another_seed(77), ones(3);
  fill_initial(*inventory.find("b"), 5, 0, 77, other.data());
  fill_initial(a, 6, 0, 77, another_seed.data());
  fill_initial(*inventory.find("one"), 5, 0, 3, ones.data());
  CHECK(other != whole);
  CHECK(another_seed != whole);
  CHECK(ones == std::vector<float>(3, 1.0f));
  CHECK_THROWS_WITH(fill_initial(a, 5, 70, 8, whole.data()), Contains("\"a\""));
}

TEST_CASE("initial values are normal") {
  Inventory inventory;
  inventory.declare(inventory.add_unit("u"), "w", Shape{200'000}, ParameterRole::matrix, initialize_normal(0.5));
  std::vector<float> values(200'000);
  fill_initial(inventory.parameters()[0], 1, 0, 200'000, values.data());
  std::vector<float> threaded(199'999);
  fill_initial(inventory.parameters()[0], 1, 1, 199'999, threaded.data(), 3);
  CHECK(threaded == std::vector<float>(values.begin() + 1, values.end()));
  double mean = 0, square = 0, fourth = 0;
  for (float value : values) {
    const double x = value / 0.5;
    mean += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  const double n = 200'000;
  CHECK(std::abs(mean / n) < 5 / std::sqrt(n));
  CHECK(square / n == Approx(1.0).margin(5 * std::sqrt(2 / n)));
  CHECK(fourth / n == Approx(3.0).margin(5 * std::sqrt(96 / n)));
}
