// The model's kernels of the CUDA backend, run on the host, against the reference backend in float64.
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;
using namespace kernel_suite;

namespace {

// The suite of one family in every precision; a second run gives the same bits. That alignment does not change bits is checked in
// test_model_dtypes.cpp and test_attention_dtypes.cpp.
void check_family(OutputBits (*compare)(Backend&, Backend&, const Precision&)) {
  const auto reference = open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  compare(*backend, *reference, Precision{});
  const Precision shifted{.unaligned = true}, narrow{.compute = DType::bfloat16};
  CHECK(compare(*backend, *reference, shifted) == compare(*backend, *reference, shifted));
  CHECK(compare(*backend, *reference, narrow) == compare(*backend, *reference, narrow));
}

}  // namespace

TEST_CASE("normalisation kernels agree with the reference and repeat bit for bit") { check_family(compare_normalization_kernels); }
TEST_CASE("activation kernels agree with the reference and repeat bit for bit") { check_family(compare_activation_kernels); }
TEST_CASE("embedding and loss kernels agree with the reference and repeat bit for bit") { check_family(compare_embedding_loss_kernels); }

// Its kernels take most of the time here: every shape of the suite runs once in float32 and a choice of them in
// bfloat16; that a second run gives the same bits, aligned or not, is checked by test_attention_dtypes.cpp on its own shapes.
TEST_CASE("attention kernels agree with the reference") {
  const auto reference = open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  compare_attention_kernels(*backend, *reference, Precision{});
  compare_attention_kernels(*backend, *reference, Precision{.compute = DType::bfloat16});
}
