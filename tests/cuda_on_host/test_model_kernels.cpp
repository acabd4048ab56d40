// The model's kernels of the CUDA backend, run on the host, against the reference backend in float64.
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;
using namespace kernel_suite;

namespace {

// The whole suite of one family, twice: the second run must give the same bits.
void check_family(OutputBits (*compare)(Backend&, Backend&, const Precision&)) {
  const auto reference = open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const OutputBits first = compare(*backend, *reference, {});
  CHECK(first == compare(*backend, *reference, {}));
}

}  // namespace

TEST_CASE("normalisation kernels agree with the reference and repeat bit for bit") { check_family(compare_normalization_kernels); }
TEST_CASE("activation kernels agree with the reference and repeat bit for bit") { check_family(compare_activation_kernels); }
TEST_CASE("embedding and loss kernels agree with the reference and repeat bit for bit") { check_family(compare_embedding_loss_kernels); }
