// What a model computes with, on the device under test, beyond aligned float32: tensors that begin anywhere, and bfloat16.
#include "support/catch.h"
#include "support/kernel_suite.h"
#include "support/test_device.h"

using namespace dmuon;
using dmuon::testing::make_test_backend;

namespace {

using Compare = kernel_suite::OutputBits (*)(Backend&, Backend&, const kernel_suite::Precision&);

void check(Compare compare, size_t least) {
  const auto device = make_test_backend();
  const auto reference = kernel_suite::open_reference();
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool unaligned : {false, true}) {
      const kernel_suite::Precision precision{.compute = dtype, .unaligned = unaligned};
      // Aligned float32 at every size is the whole suite's business.
      if (precision.thorough() || !device->computes_in(dtype)) continue;
      const kernel_suite::OutputBits bits = compare(*device, *reference, precision);
      CHECK(bits.size() >= least);
      CHECK(compare(*device, *reference, precision) == bits);  // a function of its inputs
    }
}

}  // namespace

TEST_CASE("matrix kernels, unaligned and in bfloat16", "[device]") { check(kernel_suite::compare_matrix_kernels, 30); }
TEST_CASE("attention kernels, unaligned and in bfloat16", "[device]") { check(kernel_suite::compare_attention_kernels, 30); }
TEST_CASE("normalisation kernels, unaligned and in bfloat16", "[device]") { check(kernel_suite::compare_normalization_kernels, 200); }
TEST_CASE("activation kernels, unaligned and in bfloat16", "[device]") { check(kernel_suite::compare_activation_kernels, 100); }
TEST_CASE("embedding and loss kernels, unaligned and in bfloat16", "[device]") { check(kernel_suite::compare_embedding_loss_kernels, 40); }
