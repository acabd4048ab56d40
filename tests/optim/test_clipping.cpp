#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/optim/clipping.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("the norm has the same bits however tensors are cut and whoever reports first") {
  const auto backend = reference_backend();
  constexpr int64_t chunk = 64;
  const std::vector<double> a = normal_values(1, 5 * chunk + 17), b = normal_values(2, 3), c = normal_values(3, 2 * chunk);
  const Tensor first = tensor_of(*backend, a, Shape{static_cast<int64_t>(a.size())}, DType::float32);
  const Tensor second = tensor_of(*backend, b, Shape{3}, DType::float32);
  const Tensor third = tensor_of(*backend, c, Shape{2, chunk}, DType::float32);

  const std::vector<GradientPiece> whole = {{"z.bias", second, 0}, {"a.weight", first, 0}, {"m.weight", third, 0}};
  const auto partials = gradient_partials(*backend, backend->compute_stream(), whole, chunk);
  REQUIRE(partials.size() == 3);
  CHECK(partials[1].sums.size() == 6);
  const double expected = sum_of_partials(partials);
  double squares = 0;
  for (const Tensor& tensor : {first, third, second})
    for (double value : to_doubles(*backend, tensor)) squares += value * value;
  CHECK(expected == Approx(squares).epsilon(1e-14));

  for (int64_t cut = 1; cut <= 5; ++cut) {
    const std::vector<GradientPiece> cuts = {{"a.weight", first.flat(cut * chunk, first.elements() - cut * chunk), cut * chunk},
                                             {"m.weight", third, 0},
                                             {"a.weight", first.flat(0, cut * chunk), 0},
                                             {"z.bias", second, 0}};
    auto found = gradient_partials(*backend, backend->compute_stream(), cuts, chunk);
    CHECK(sum_of_partials(found) == expected);
    std::reverse(found.begin(), found.end());
    CHECK(sum_of_partials(found) == expected);
  }
}

TEST_CASE("a range that starts inside a chunk is refused by name") {
  const auto backend = reference_backend();
  const GradientPiece piece{"blocks.3.weight", tensor_of(*backend, {1.0}, Shape{1}, DType::float32), 100};
  CHECK_THROWS_AS(gradient_partials(*backend, backend->compute_stream(), {&piece, 1}, 64), ShapeError);
  CHECK_THROWS_WITH(gradient_partials(*backend, backend->compute_stream(), {&piece, 1}, 64), Catch::Contains("blocks.3.weight"));
  CHECK(gradient_partials(*backend, backend->compute_stream(), {}).empty());
}

TEST_CASE("the clip coefficient") {
  CHECK(clip_coefficient(0.5, 1.0) == 1.0);
  CHECK(clip_coefficient(4.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(clip_coefficient(0.0, 1.0) == 1.0);
  CHECK(clip_coefficient(1e9, 0.0) == 1.0);
  CHECK(clip_coefficient(INFINITY, 1.0) == 0.0);
  CHECK(std::isnan(clip_coefficient(NAN, 1.0)));
}
