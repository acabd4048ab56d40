#include "fma_peak.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dmuon::bench {
namespace {

constexpr int chains = 12;  // two multiply-adds start in every cycle and each takes four or five
constexpr int64_t rounds = 1'000'000;

// x = x * factor + term in `chains` independent vectors; returns something that depends on all of them. One function for each
// width: the compiler may not contract products and sums by itself (standard C++), so the instruction is named.
float baseline(float start) {
  __m128 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm_set1_ps(start + static_cast<float>(i));
  const __m128 factor = _mm_set1_ps(0.999f), term = _mm_set1_ps(0.001f);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < chains; ++i) x[i] = _mm_add_ps(_mm_mul_ps(x[i], factor), term);
  for (int i = 1; i < chains; ++i) x[0] = _mm_add_ps(x[0], x[i]);
  return _mm_cvtss_f32(x[0]);
}

__attribute__((target("avx2,fma"))) float avx2(float start) {
  __m256 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm256_set1_ps(start + static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < chains; ++i) x[i] = _mm256_fmadd_ps(x[i], factor, term);
  for (int i = 1; i < chains; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
  return _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f"))) float avx512(float start) {
  __m512 x[chains];
  for (int i = 0; i < chains; ++i) x[i] = _mm512_set1_ps(start + static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < chains; ++i) x[i] = _mm512_fmadd_ps(x[i], factor, term);
  for (int i = 1; i < chains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  return _mm512_cvtss_f32(x[0]);
}

double seconds_now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double fma_peak_gflops(const std::string& instruction_set, int threads) {
  const bool wide = instruction_set == "avx512", middle = instruction_set == "avx2";
  const auto function = wide ? avx512 : middle ? avx2 : baseline;
  const double lanes = wide ? 16 : middle ? 8 : 4;
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<float> results(static_cast<size_t>(threads));
  double best = 0;
  for (int turn = 0; turn < 10; ++turn) {
    const double start = seconds_now(clock);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int i = 0; i < threads; ++i) results[static_cast<size_t>(i)] = function(static_cast<float>(turn));
    best = std::max(best, 2.0 * lanes * chains * static_cast<double>(rounds) * threads / (seconds_now(clock) - start));
  }
  return best / 1e9;
}

}  // namespace dmuon::bench
