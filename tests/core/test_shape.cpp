#include "dmuon/core/shape.h"

#include <vector>

#include "dmuon/core/error.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("sizes, element counts and text") {
  const Shape shape{2, 3, 5};
  CHECK(shape.rank() == 3);
  CHECK(shape.elements() == 30);
  CHECK(shape[-1] == 5);
  CHECK(shape[0] == 2);
  CHECK(shape.to_string() == "[2, 3, 5]");
  CHECK(Shape{}.elements() == 1);
  CHECK(Shape{}.to_string() == "[]");
  CHECK(Shape{4, 0, 7}.elements() == 0);
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK_FALSE(Shape{2, 3} == Shape{3, 2});
  CHECK_FALSE(Shape{2} == Shape{2, 1});
}

TEST_CASE("negative sizes, overflow and too many dimensions are refused whatever the order") {
  constexpr int64_t large = int64_t{1} << 40;
  CHECK_THROWS_WITH((Shape{2, -3}), Catch::Contains("[2, -3]"));
  CHECK_THROWS_AS((Shape{large, large}), ShapeError);
  CHECK_THROWS_AS((Shape{0, large, large}), ShapeError);
  CHECK_THROWS_AS((Shape{large, large, 0}), ShapeError);
  CHECK_THROWS_AS((Shape{large, 0, -1}), ShapeError);
  CHECK(Shape{INT64_MAX}.elements() == INT64_MAX);
  CHECK_NOTHROW(Shape(std::vector<int64_t>(8, 1)));
  CHECK_THROWS_WITH(Shape(std::vector<int64_t>(9, 1)), Catch::Contains("at most 8") && Catch::Contains("got 9"));
}
