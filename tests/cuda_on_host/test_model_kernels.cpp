// The model's kernels of the CUDA backend, run on the host, against the reference backend in float64.
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;
using namespace kernel_suite;

namespace {

// The suite of one family in every precision; a second run gives the same bits. That alignment does not change bits is checked in
// test_model_dtypes.cpp and test_attention_dtypes.cpp.
template <class Compare>
void check_family(const Compare& compare) {
  const auto reference = open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const OutputBits first = compare(*backend, *reference, Precision{});
  CHECK(first == compare(*backend, *reference, Precision{}));
  compare(*backend, *reference, Precision{.unaligned = true});
  for (bool unaligned : {false, true}) compare(*backend, *reference, Precision{.compute = DType::bfloat16, .unaligned = unaligned});
}

}  // namespace

TEST_CASE("normalisation kernels agree with the reference and repeat bit for bit") { check_family(compare_normalization_kernels); }
TEST_CASE("activation kernels agree with the reference and repeat bit for bit") { check_family(compare_activation_kernels); }
TEST_CASE("embedding and loss kernels agree with the reference and repeat bit for bit") { check_family(compare_embedding_loss_kernels); }
TEST_CASE("attention kernels agree with the reference and repeat bit for bit") { check_family(compare_attention_kernels); }
