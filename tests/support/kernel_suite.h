// Compares every kernel of a backend in float32 with the reference backend in float64, on equal random data at odd
// sizes, with outputs that hold NaN before the call. The sources are in tests/kernel_suite/; a test program uses it by
//
//   dmuon_add_test(test_mine LABELS unit SOURCES test_mine.cpp)
//   target_link_libraries(test_mine PRIVATE dmuon_kernel_suite)
//
//   auto reference = kernel_suite::open_reference();
//   kernel_suite::compare_all_kernels(*mine, *reference);
//
// Works with backends in the modes normal, guarded and deferred. Differences are Catch2 failures that name the kernel,
// its sizes, the element, what was expected and what was found. Allowed error of an element x of an output that sums r
// terms: 2^-23 (8 + 4 sqrt(r)) (|x| + root mean square of the output), plus what cancellation inside the kernel earns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "dmuon/backend/backend.h"

namespace kernel_suite {

// Hashes of the bits of every compared output, by "kernel, sizes: output". Runs with other thread counts are compared
// by these maps: all kernels must repeat their bits with equal threads, those of thread_count_invariant() with any.
using OutputBits = std::map<std::string, uint64_t>;

// The plug-in that the build has made.
std::unique_ptr<dmuon::Backend> open_reference(const dmuon::BackendOptions& options = {});

// How the tensors of a comparison are made. In bfloat16 (float16: batched products only) values are rounded before either side
// sees them, and the norm of an output's error may be 1/100 (1/1000) of the output's.
struct Precision {
  dmuon::DType compute = dmuon::DType::float32;  // of activations and parameters
  bool unaligned = false;                        // every tensor is a view that begins one element into its memory
  // Everything at all sizes in aligned float32; a choice of sizes otherwise.
  bool thorough() const { return compute == dmuon::DType::float32 && !unaligned; }
};

OutputBits compare_matrix_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);
OutputBits compare_attention_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);
OutputBits compare_normalization_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);
OutputBits compare_activation_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);
OutputBits compare_embedding_loss_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);
// The five of them: what a model computes with.
OutputBits compare_model_kernels(dmuon::Backend& tested, dmuon::Backend& reference, const Precision& precision);

// In aligned float32.
OutputBits compare_matrix_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_attention_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_normalization_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_activation_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_embedding_loss_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_optimizer_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
OutputBits compare_sign_kernels(dmuon::Backend& tested, dmuon::Backend& reference);
// All of them in float32.
OutputBits compare_all_kernels(dmuon::Backend& tested, dmuon::Backend& reference);

// The entries whose kernels promise equal bits for any number of threads: batched products, the optimizer
// family and the signs.
OutputBits thread_count_invariant(const OutputBits& bits);

}  // namespace kernel_suite
