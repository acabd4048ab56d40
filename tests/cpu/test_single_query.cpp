// Attention of one query over a cache, as each step of decoding has it, beside the naive loops of the reference backend in float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_support.h"
#include "support/kernel_suite.h"

using namespace dmuon;
using cpu_test::bits;

namespace {

struct Problem {
  int64_t batch, heads, key_heads, width, held;  // keys that the query sees
  int64_t capacity;                              // of the cache; what is not held is NaN
  double sharpness = 1.0;                        // of the scores, beside scores of deviation 1
  bool causal = true;
  double dropout = 0.0;
};

struct Result {
  std::vector<double> output, log_sum_exp;
  std::vector<uint32_t> output_bits, log_sum_exp_bits;  // of float32
};

std::vector<double> cached(const Problem& p, uint64_t seed, double growth) {
  std::vector<double> values = cpu_test::random_values(p.batch * p.capacity * p.key_heads * p.width, seed);
  const int64_t row = p.key_heads * p.width;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t key = i / row % p.capacity;
    double& value = values[static_cast<size_t>(i)];
    // Later keys are larger, so that the largest score so far changes again and again.
    value = static_cast<float>(value * (1.0 + growth * static_cast<double>(key) / static_cast<double>(p.held)));
    if (key >= p.held) value = std::numeric_limits<double>::quiet_NaN();
  }
  return values;
}

Result attend(Backend& backend, DType dtype, const Problem& p) {
  const Shape rows{p.batch, 1, p.heads, p.width}, store{p.batch, p.capacity, p.key_heads, p.width};
  AttentionForward f;
  f.query = cpu_test::tensor(backend, rows, cpu_test::random_values(rows.elements(), 21), dtype);
  f.key = cpu_test::tensor(backend, store, cached(p, 22, 1.0), dtype);
  f.value = cpu_test::tensor(backend, store, cached(p, 23, 0.0), dtype);
  f.output = cpu_test::unset(backend, rows, dtype);
  f.log_sum_exp = cpu_test::unset(backend, {p.batch, p.heads, 1}, dtype);
  f.scale = p.sharpness / std::sqrt(static_cast<double>(p.width));
  f.causal = p.causal;
  f.key_offset = p.causal ? p.held - 1 : 0;
  f.dropout = {.probability = p.dropout, .seed = 31, .first_sequence = 2, .sequences = p.batch};
  backend.attention().forward(backend.compute_stream(), f);
  Result result{to_doubles(backend, f.output), to_doubles(backend, f.log_sum_exp), {}, {}};
  if (dtype == DType::float32) result.output_bits = bits(backend, f.output), result.log_sum_exp_bits = bits(backend, f.log_sum_exp);
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

// On every instruction set, with one and two threads, whose bits are the same.
void check(Backend& reference, const Problem& p) {
  const Result expected = attend(reference, DType::float64, p);
  // Rounding of a score, of size up to ten times the sharpness, is a relative error of its probability; values are of size four.
  const double tolerance = 0x1p-23 * (64.0 + 40.0 * p.sharpness);
  for (const std::string& set : cpu::supported_instruction_sets()) {
    INFO(set << ", batch " << p.batch << ", heads " << p.heads << " over " << p.key_heads << ", width " << p.width << ", keys " << p.held
             << " of " << p.capacity << ", sharpness " << p.sharpness << ", dropout " << p.dropout << (p.causal ? ", causal" : ""));
    const Result one = attend(*cpu_test::make(1, set), DType::float32, p), two = attend(*cpu_test::make(2, set), DType::float32, p);
    CHECK(largest_difference(one.output, expected.output) < tolerance);
    CHECK(largest_difference(one.log_sum_exp, expected.log_sum_exp) < tolerance);
    CHECK(two.output_bits == one.output_bits);
    CHECK(two.log_sum_exp_bits == one.log_sum_exp_bits);
  }
}

}  // namespace

TEST_CASE("one query over a cache: every head width, number of query heads to a key head, and length") {
  const auto reference = kernel_suite::open_reference();
  for (int64_t width : {32, 64, 80, 128})
    for (int64_t held : {1, 2, 17, 255, 1000})
      for (auto [heads, key_heads] : {std::pair<int64_t, int64_t>{4, 4}, {6, 2}, {5, 1}})
        check(*reference, {.batch = 2, .heads = heads, .key_heads = key_heads, .width = width, .held = held, .capacity = held});
}

TEST_CASE("one query over a cache: lengths about the block of 256 keys, odd widths, and a cache longer than what it holds") {
  const auto reference = kernel_suite::open_reference();
  for (int64_t held : {3, 256, 257, 259, 513})
    for (int64_t width : {1, 7, 36, 65})
      check(*reference, {.batch = 3, .heads = 3, .key_heads = 1, .width = width, .held = held, .capacity = held + 29});
}

TEST_CASE("one query over a cache: sharp scores, a query that sees everything, and dropout") {
  const auto reference = kernel_suite::open_reference();
  for (int64_t held : {17, 1000}) {
    const Problem plain{.batch = 2, .heads = 4, .key_heads = 2, .width = 80, .held = held, .capacity = held};
    for (double sharpness : {0.01, 8.0}) {
      Problem p = plain;
      p.sharpness = sharpness;
      check(*reference, p);
    }
    Problem whole = plain, dropped = plain;
    whole.causal = false;
    check(*reference, whole);
    dropped.dropout = 0.3;
    check(*reference, dropped);
  }
}
