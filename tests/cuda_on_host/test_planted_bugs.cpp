// Every kind of bug that the stand-in looks for, planted, and correct kernels beside them. Built twice: with the accesses of the
// kernels checked, and without, as in the plug-in that runs whole trainings, which must find what it claims to find.
#include <cmath>
#include <cstdlib>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/planted_bugs.h"
#include "cuda_on_host/test_support.h"

using namespace cuda_on_host;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t count = 1000;

// In each order of threads and blocks.
void in_all_orders(const std::function<void()>& work) {
  for (const char* order : {"forward", "reverse", "random"}) {
    setenv("CUDA_ON_HOST_ORDER", order, 1);
    INFO("order " << order);
    work();
  }
  unsetenv("CUDA_ON_HOST_ORDER");
}

std::vector<float> numbers(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

bool has_nan(const std::vector<float>& values) {
  for (const float value : values)
    if (std::isnan(value)) return true;
  return false;
}

}  // namespace

TEST_CASE("correct kernels are not reported and compute what they should") {
  Buffer x(count), y(count), sums(4, 0.0f), lanes(32);
  x.write(numbers(count));
  in_all_orders([&] {
    CHECK(report_of([&] { planted::copy(nullptr, x.data, y.data, count); }).empty());
    CHECK(y.read() == x.read());
    CHECK(report_of([&] { planted::block_sums(nullptr, x.data, sums.data, count); }).empty());
    CHECK(sums.read() == std::vector<float>{32640, 98176, 163712, 204972});
    Buffer z(256);
    z.write(numbers(256));
    CHECK(report_of([&] { planted::reverse(nullptr, z.data, 256); }).empty());
    CHECK(z.read()[1] == 254);
    CHECK(report_of([&] { planted::warp_sum(nullptr, lanes.data); }).empty());
    CHECK(lanes.read() == std::vector<float>(32, 32.0f));
  });
}

TEST_CASE("a missing barrier") {
  Buffer x(count, 1.0f), sums(4, 0.0f);
  bool found = false;  // without checks some order of the threads gives a wrong sum
  in_all_orders([&] {
    const std::string report = report_of([&] { planted::block_sums_without_barrier(nullptr, x.data, sums.data, count); });
    if (accesses_are_checked()) CHECK_THAT(report, Contains("shared memory \"partial\"") && Contains("planted_bugs.cu:"));
    found = found || !report.empty() || sums.read() != std::vector<float>{256, 256, 256, 232};
  });
  CHECK(found);
}

TEST_CASE("a race between two uses of shared memory") {
  Buffer y(256);
  bool found = false;
  in_all_orders([&] {
    y.write(numbers(256));
    const std::string report = report_of([&] { planted::reverse_twice_in_place(nullptr, y.data, 256); });
    if (accesses_are_checked()) CHECK_THAT(report, Contains("race in shared memory") && Contains("planted_bugs.cu:"));
    found = found || !report.empty() || y.read()[1] != 254;
  });
  CHECK(found);
}

TEST_CASE("barriers that diverge are named") {
  Buffer y(64);
  in_all_orders([&] {
    CHECK_THAT(report_of([&] { planted::barrier_in_branch(nullptr, y.data); }),
               Contains("divergent barrier") && Contains("planted_bugs.cu:") && Contains("barrier_in_branch"));
    CHECK_THAT(report_of([&] { planted::two_barriers(nullptr, y.data); }),
               Contains("divergent barrier") && Contains("planted_bugs.cu:") && Contains("waits in the one at"));
  });
}

TEST_CASE("writes out of bounds") {
  if (addresses_are_sanitized()) return;  // they would end the process, as they should
  Buffer x(count + 8, 1.0f), y(count);
  CHECK_THAT(
      report_of([&] { planted::copy_one_too_many(nullptr, x.data, y.data, count); }),
      Contains("out of bounds") && Contains("0 bytes behind") && Contains("4000 bytes on device 0") && Contains("copy_one_too_many"));
  Buffer z(2002);
  Buffer w(2008, 1.0f);
  CHECK_THAT(report_of([&] { planted::copy_by_four(nullptr, w.data, z.data, 2002); }),
             Contains("out of bounds") && Contains("(8008 bytes on device 0)"));
  CHECK_THAT(report_of([&] { planted::copy_through_short_shared(nullptr, x.data, y.data, count); }),
             Contains("out of bounds") && Contains("shared memory \"tile\" of 1020 bytes"));
}

TEST_CASE("reads out of bounds give poison and, where accesses are checked, a report") {
  if (addresses_are_sanitized()) return;
  Buffer x(count, 1.0f), y(count, 0.0f);
  const std::string report = report_of([&] { planted::copy_from_before(nullptr, x.data, y.data, count); });
  if (accesses_are_checked())
    CHECK_THAT(report, Contains("out of bounds: 4 bytes read at 4 bytes before allocation") && Contains("planted_bugs.cu:"));
  else
    CHECK(y.read()[0] != 1.0f);
}

TEST_CASE("uninitialised device memory") {
  Buffer x(count), y(count);
  const std::string report = report_of([&] { planted::copy(nullptr, x.data, y.data, count); });
  if (accesses_are_checked())
    CHECK_THAT(report, Contains("uninitialised: byte") && Contains("planted_bugs.cu:"));
  else
    CHECK(has_nan(y.read()));
}

TEST_CASE("uninitialised shared memory") {
  Buffer y(1);
  const std::string report = report_of([&] { planted::sum_of_unwritten_shared(nullptr, y.data); });
  if (accesses_are_checked())
    CHECK_THAT(report, Contains("uninitialised: shared memory \"tile\", byte 20") && Contains("planted_bugs.cu:"));
  else
    CHECK(std::isnan(y.read()[0]));
}

TEST_CASE("a wrong grid") {
  Buffer x(1024, 1.0f), y(1000);
  CHECK(report_of([&] { planted::copy_grid_too_small(nullptr, x.data, y.data, count); }).empty());
  CHECK(has_nan(y.read()));
  if (addresses_are_sanitized()) return;
  Buffer from(2048, 1.0f), to(1024);
  CHECK_THAT(report_of([&] { planted::copy_grid_too_large(nullptr, from.data, to.data, 1024); }), Contains("out of bounds"));
}

TEST_CASE("warp exchanges with a wrong mask") {
  Buffer y(32);
  in_all_orders([&] {
    CHECK_THAT(report_of([&] { planted::warp_sum_with_short_mask(nullptr, y.data); }),
               Contains("warp_sum_with_short_mask") && (Contains("lacks the calling lane") || Contains("took no part")));
    CHECK_THAT(report_of([&] { planted::warp_sum_of_half(nullptr, y.data); }), Contains("a shuffle reads lane"));
  });
}

TEST_CASE("a missing wait for an event gives wrong results with some seed, a right one with all") {
  StreamHandle first, second;
  int wrong_without = 0;
  for (int attempt = 0; attempt < 40; ++attempt) {
    for (const bool waits : {true, false}) {
      Buffer x(count, 0.0f), y(count, 0.0f);
      EventHandle event;
      for (int i = 0; i < 4; ++i) planted::add(first, x.data, 1.0f, count);
      REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
      if (waits) REQUIRE(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
      planted::accumulate(second, x.data, y.data, count);
      const bool right = y.read() == std::vector<float>(count, 4.0f);
      if (waits) REQUIRE(right);
      wrong_without += !right;
    }
  }
  CHECK(wrong_without >= 5);
}

TEST_CASE("host code that frees too early, or twice") {
  StreamHandle stream;
  Buffer x(count, 1.0f);
  float* gone = nullptr;
  REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&gone), count * 4, stream) == cudaSuccess);
  CHECK(report_of([&] {
          cudaMemsetAsync(gone, 0, count * 4, stream);
          cudaFreeAsync(gone, stream);
        }).empty());
  CHECK_THAT(report_of([&] { cudaFree(gone); }), Contains("not allocated"));
  CHECK(cudaMemsetAsync(gone, 0, 4, stream) == cudaErrorInvalidValue);
  if (accesses_are_checked())
    CHECK_THAT(report_of([&] { planted::copy(stream, x.data, gone, count); }), Contains("out of bounds") && Contains("no live allocation"));
}
