#include "dmuon/backend/plugin.h"

#include <cmath>
#include <fstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;
using Catch::Matchers::Contains;

namespace {

void check_refused(const std::string& path, const std::string& cause) {
  CHECK_THROWS_AS(open_backend_plugin(path), DeviceError);
  CHECK_THROWS_WITH(open_backend_plugin(path), Contains(path) && Contains(cause));
}

}  // namespace

TEST_CASE("the reference plug-in opens, repeatedly, and computes") {
  for (int i = 0; i < 2; ++i) {
    auto backend = open_backend_plugin(dmuon::testing::reference_plugin());
    CHECK(backend->name() == "reference");
    const auto tensor = [&](const Shape& shape, std::vector<double> values) {
      Tensor t = backend->allocate(shape, DType::float64, MemoryCategory::workspace, "test");
      from_doubles(*backend, values, t);
      return t;
    };
    Multiply product;
    product.a = tensor({2, 3}, {1, 2, 3, 4, 5, 6});
    product.b = tensor({3, 1}, {1, 10, 100});
    product.c = tensor({2, 1}, {NAN, NAN});
    backend->matrix().multiply(backend->compute_stream(), product);
    CHECK(to_doubles(*backend, product.c) == std::vector<double>{321, 654});
    CHECK(backend->costs().at("multiply").flops == 12);
  }
}

TEST_CASE("what is not a plug-in of this build is refused with file and cause") {
  check_refused("/no/such/plugin.so", "missing");
  check_refused(DMUON_TEST_NO_ENTRY, "dmuon_backend_entry");
  check_refused(DMUON_TEST_WRONG_VERSION, text("version ", backend_plugin_version + 41));
  check_refused(DMUON_TEST_WRONG_SIZE, text("a table of ", sizeof(BackendPlugin) + 8, " bytes"));
  check_refused(DMUON_TEST_WRONG_INTERFACE, "interface fedcba9876543210");

  const std::string garbage = dmuon::testing::build_directory() + "/not_a_library.so";
  std::ofstream(garbage) << "this is text";
  check_refused(garbage, "cannot be opened");
  check_refused(dmuon::testing::build_directory(), "cannot be opened");
}
