#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_support.h"
#include "dmuon/core/error.h"

using namespace dmuon;

namespace {

// Distance in units in the last place of the exact value, subnormals on their own grid.
double ulps(float found, double exact) {
  if (std::isnan(exact) || std::isinf(static_cast<float>(exact)))
    return (std::isnan(exact) && std::isnan(found)) || found == static_cast<float>(exact) ? 0.0 : 1e9;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(static_cast<double>(found) - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

template <class Function, class Exact>
double worst(Function function, Exact exact, float low, float high) {
  constexpr int64_t count = 200'003;
  std::vector<float> x(count), y(count);
  for (int64_t i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] = low + (high - low) * static_cast<float>(i) / static_cast<float>(count - 1);
  function(x.data(), y.data(), count);
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, ulps(y[i], exact(static_cast<double>(x[i]))));
  return most;
}

}  // namespace

TEST_CASE("exponential and normal distribution are accurate on every instruction set") {
  const auto exponential = [](double x) { return std::exp(x); };
  const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  for (const std::string& name : cpu::supported_instruction_sets()) {
    INFO(name);
    const simd::Table& simd = cpu::choose_instruction_set(name);
    CHECK(worst(simd.exponentials, exponential, -87.3f, 88.0f) < 2.0);
    CHECK(worst(simd.exponentials, exponential, -1.0f, 1.0f) < 2.0);
    CHECK(worst(simd.exponentials, exponential, -1e-6f, 1e-6f) < 1.0);
    CHECK(worst(simd.normal_distributions, normal, 0.0f, 8.0f) < 5.0);
    CHECK(worst(simd.normal_distributions, normal, -4.0f, 0.0f) < 12.0);
    CHECK(worst(simd.normal_distributions, normal, -12.0f, -4.0f) < 80.0);  // the rounding of x^2 / 2
    const float infinity = std::numeric_limits<float>::infinity();
    const float special[] = {infinity, -infinity, std::nanf(""), 0.0f};
    float e[4], f[4];
    simd.exponentials(special, e, 4);
    simd.normal_distributions(special, f, 4);
    CHECK((e[0] > 1e38f && e[0] < infinity && e[1] >= 0.0f && e[1] < 2e-38f && std::isnan(e[2]) && e[3] == 1.0f));
    CHECK((f[0] == 1.0f && f[1] == 0.0f && std::isnan(f[2]) && f[3] == 0.5f));
  }
}

TEST_CASE("an instruction set is chosen by name and refused by name") {
  CHECK(cpu_test::make(1, "baseline")->information().instruction_set == "baseline");
  CHECK(cpu_test::make(2)->information().instruction_set == cpu::supported_instruction_sets().back());
  CHECK(cpu_test::make(2)->information().threads == 2);
  CHECK_THROWS_AS(cpu_test::make(1, "avx1024"), DeviceError);
  CHECK_THROWS_WITH(cpu_test::make(1, "avx1024"), Catch::Contains("avx1024") && Catch::Contains("baseline"));
  CHECK_THROWS_AS(cpu_test::make(0), DeviceError);
}
