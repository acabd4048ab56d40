// The kernels of the CUDA backend, run on the host, against the reference backend in float64.
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

TEST_CASE("a sum on the device") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const Tensor x = backend->allocate(Shape{1000}, DType::float32, MemoryCategory::workspace, "x");
  const Tensor y = backend->allocate(Shape{1000}, DType::float32, MemoryCategory::workspace, "y");
  from_doubles(*backend, std::vector<double>(1000, 3.0), x);
  ScaledAdd arguments;
  arguments.x = x, arguments.y = y, arguments.alpha = 2.0, arguments.accumulate = false;
  backend->activation().scaled_add(backend->compute_stream(), arguments);
  CHECK(to_doubles(*backend, y) == std::vector<double>(1000, 6.0));
}
