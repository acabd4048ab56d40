#include "dmuon/optim/clipping.h"

#include <cmath>
#include <limits>

#include "support/catch.h"

using namespace dmuon;

TEST_CASE("the clip coefficient") {
  CHECK(clip_coefficient(0.5, 1.0) == 1.0);
  CHECK(clip_coefficient(4.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(clip_coefficient(0.0, 1.0) == 1.0);
  CHECK(clip_coefficient(1e9, 0.0) == 1.0);
  CHECK(clip_coefficient(INFINITY, 1.0) == 0.0);
  CHECK(std::isnan(clip_coefficient(NAN, 1.0)));
}
