// All kernels against the reference backend in float64: every instruction set of this processor, 1 to 3 threads, and both
// test doubles.
#include "cpu/cpu_support.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

kernel_suite::OutputBits compare(Backend& reference, int threads, const std::string& instruction_set = "auto",
                                 HostMode mode = HostMode::normal) {
  INFO(instruction_set << ", threads " << threads << ", mode " << static_cast<int>(mode));
  BackendOptions options;
  options.threads = threads;
  options.instruction_set = instruction_set;
  options.mode = mode;
  return kernel_suite::compare_all_kernels(*make_cpu_backend(options), reference);
}

}  // namespace

TEST_CASE("every kernel agrees with the reference on the narrower instruction sets too") {
  const auto reference = kernel_suite::open_reference();
  std::vector<std::string> narrower = cpu::supported_instruction_sets();
  narrower.pop_back();  // the widest one runs below
  for (const std::string& instruction_set : narrower) compare(*reference, 2, instruction_set);
}

TEST_CASE("bits repeat, in any number of threads where that is promised, and in both test doubles") {
  const auto reference = kernel_suite::open_reference();
  const auto one = compare(*reference, 1), two = compare(*reference, 2), three = compare(*reference, 3);
  CHECK(kernel_suite::thread_count_invariant(two) == kernel_suite::thread_count_invariant(one));
  CHECK(kernel_suite::thread_count_invariant(three) == kernel_suite::thread_count_invariant(one));
  CHECK(compare(*reference, 2, "auto", HostMode::guarded) == two);
  CHECK(compare(*reference, 2, "auto", HostMode::deferred) == two);
}
