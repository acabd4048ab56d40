#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

// The suite on the reference backend itself, float32 against float64: shows that the tolerances hold for a backend that
// rounds only its results, and that the suite and the backend agree on the contracts.
TEST_CASE("the reference backend in float32 agrees with itself in float64") {
  auto single = kernel_suite::open_reference();
  auto reference = kernel_suite::open_reference();
  const auto bits = kernel_suite::compare_all_kernels(*single, *reference);
  CHECK(bits.size() > 1000);
}

TEST_CASE("the reference backend in bfloat16 agrees with itself in float64") {
  auto narrow = kernel_suite::open_reference();
  auto reference = kernel_suite::open_reference();
  REQUIRE(narrow->computes_in(DType::bfloat16));
  for (const bool unaligned : {false, true})
    CHECK(kernel_suite::compare_model_kernels(*narrow, *reference, {.compute = DType::bfloat16, .unaligned = unaligned}).size() > 200);
}

TEST_CASE("the guarded and deferred doubles compute the same bits") {
  auto plain = kernel_suite::open_reference();
  auto reference = kernel_suite::open_reference();
  BackendOptions options;
  options.mode = GENERATE(HostMode::guarded, HostMode::deferred);
  auto tested = kernel_suite::open_reference(options);
  using Compare = kernel_suite::OutputBits (*)(Backend&, Backend&);
  const Compare families[] = {kernel_suite::compare_attention_kernels, kernel_suite::compare_normalization_kernels,
                              kernel_suite::compare_embedding_loss_kernels, kernel_suite::compare_optimizer_kernels};
  for (const Compare compare : families) CHECK(compare(*tested, *reference) == compare(*plain, *reference));
}
