#include "dmuon/core/error.h"
#include "dmuon/newton_schulz/coefficients.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

struct Name {
  const char* fixture;
  const char* ours;
};
constexpr Name names[] = {{"keller5", "keller5"},
                          {"you5", "you5"},
                          {"pe_dao_105", "polar_express_105"},
                          {"pe_101", "polar_express_101"},
                          {"pe_dion_102", "polar_express_dion"},
                          {"eo_pe5", "emerging_polar_express5"},
                          {"cans5", "cans5"},
                          {"dsv4_10", "deepseek10"},
                          {"cubic5", "cubic5"},
                          {"track3_12", "track3_12"}};

}  // namespace

TEST_CASE("coefficient sets equal the published tables") {
  const Json data = fixture("muon_fixtures.json");
  CHECK(coefficient_set_names().size() == data.at("coeffs").as_object().size());
  for (const Name& name : names) {
    INFO(name.ours);
    const CoefficientSet& set = coefficient_set(name.ours);
    const std::vector<double> expected = numbers(data.at("coeffs").at(name.fixture));
    REQUIRE(static_cast<size_t>(set.iterations) * 3 == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) CHECK(set.rows[i / 3][i % 3] == expected[i]);
    CHECK(set.cubic == (set.name == "cubic5"));
    for (DType precision : {DType::float32, DType::float16, DType::bfloat16})
      for (int restart : set.restarts(precision)) CHECK((restart > 0 && restart < set.iterations));
  }
}

TEST_CASE("the scalar map follows the golden table") {
  const Json data = fixture("muon_fixtures.json");
  for (const Name& name : names) {
    const Json* table = data.at("phi").find(name.fixture);
    if (!table) continue;
    const double factor = std::string(name.fixture) == "pe_dion_102" ? 1.02 : 1.0;
    for (const auto& [key, value] : table->as_object()) {
      INFO(name.ours << " at " << key);
      CHECK(newton_schulz_scalar_map(coefficient_set(name.ours), std::stod(key) / factor) == Approx(value.as_number()).epsilon(1e-11));
    }
  }
}

TEST_CASE("emerging_polar_express5 goes on with its eight rows, every set with its last") {
  const CoefficientSet& set = coefficient_set("emerging_polar_express5");
  REQUIRE(set.rows.size() == 8);
  const double seven = newton_schulz_scalar_map(set, 0.01, 7), eight = newton_schulz_scalar_map(set, 0.01, 8);
  CHECK(eight == Approx(1.875 * seven - 1.25 * std::pow(seven, 3) + 0.375 * std::pow(seven, 5)));
  CHECK(newton_schulz_scalar_map(set, 0.01, 20) == Approx(1.0).epsilon(1e-12));
}

TEST_CASE("an unknown coefficient set names the nearest") {
  CHECK_THROWS_AS(coefficient_set("keler5"), ConfigError);
  CHECK_THROWS_WITH(coefficient_set("keler5"), Catch::Contains("keler5") && Catch::Contains("did you mean \"keller5\""));
}
