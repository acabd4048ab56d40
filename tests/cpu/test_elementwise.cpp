// Passes that shards run on arbitrary ranges of a tensor must give the bits of the whole pass.
#include <cmath>
#include <functional>
#include <limits>

#include "cpu/cpu_support.h"

using namespace dmuon;
using cpu_test::bits;

namespace {

constexpr int64_t elements = 16384 * 3 + 77;

// Runs `pass` on fresh tensors, whole or on consecutive ranges, and returns the bits of all tensors.
using Pass = std::function<void(Backend&, const std::vector<Tensor>&)>;
std::vector<uint32_t> run(Backend& backend, int tensors, const std::vector<int64_t>& cuts, const Pass& pass) {
  std::vector<Tensor> whole;
  for (int i = 0; i < tensors; ++i) {
    std::vector<double> values = cpu_test::random_values(elements, static_cast<uint64_t>(i));
    for (double& value : values) value = std::fabs(value);
    whole.push_back(cpu_test::tensor(backend, {elements}, values));
  }
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<Tensor> part;
    for (const Tensor& tensor : whole) part.push_back(tensor.flat(cuts[i], cuts[i + 1] - cuts[i]));
    pass(backend, part);
  }
  std::vector<uint32_t> all;
  for (const Tensor& tensor : whole) {
    const auto words = bits(backend, tensor);
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

Tensor hyper(Backend& backend, const std::vector<double>& values) {
  return cpu_test::tensor(backend, {static_cast<int64_t>(values.size())}, values, DType::float64);
}

}  // namespace

TEST_CASE("optimizer passes have the same bits on ranges, for every thread count and every instruction set") {
  const std::vector<std::pair<int, Pass>> passes = {
      {4,
       [](Backend& b, const std::vector<Tensor>& t) {
         b.optimizer().adamw(b.compute_stream(), {t[0], t[1], t[2], t[3], hyper(b, {1e-2, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.6, 0.7})});
       }},
      {3,
       [](Backend& b, const std::vector<Tensor>& t) {
         b.optimizer().sgd(b.compute_stream(), {t[0], t[1], t[2], hyper(b, {0.1, 0.9, 0.2, 0.01, 0.7, 0, 1})});
       }},
      {3,
       [](Backend& b, const std::vector<Tensor>& t) {
         b.optimizer().sgd(b.compute_stream(), {t[0], t[1], t[2], hyper(b, {0.1, 0.9, 0.2, 0.01, 0.7, 1, 0})});
       }},
      {3,
       [](Backend& b, const std::vector<Tensor>& t) {
         b.optimizer().muon_momentum(b.compute_stream(), {false, true, t[0], t[1], t[2], {}, 16384, hyper(b, {0.95, 0.7})});
       }},
      {2,
       [](Backend& b, const std::vector<Tensor>& t) {
         b.optimizer().muon_apply(b.compute_stream(), {t[0], t[1], hyper(b, {0.02, 0.1, 0.2})});
       }},
  };
  const auto first = cpu_test::make(1, "baseline");
  for (size_t p = 0; p < passes.size(); ++p) {
    const auto& [tensors, pass] = passes[p];
    const auto expected = run(*first, tensors, {0, elements}, pass);
    for (const std::string& instruction_set : cpu::supported_instruction_sets())
      for (const int threads : {1, 2, 3}) {
        INFO("pass " << p << " " << instruction_set << " threads " << threads);
        const auto backend = cpu_test::make(threads, instruction_set);
        CHECK(run(*backend, tensors, {0, elements}, pass) == expected);
        CHECK(run(*backend, tensors, {0, 1, 6, 16384, 16384 + 13, 16384 * 2 - 1, elements}, pass) == expected);
      }
  }
}

TEST_CASE("square sums of a momentum pass equal the square sums of its update, in any number of threads") {
  const auto one = cpu_test::make(1, "baseline");
  std::vector<uint32_t> expected;
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const int threads : {1, 2, 3}) {
      const auto backend = cpu_test::make(threads, instruction_set);
      const Tensor gradient = cpu_test::tensor(*backend, {elements}, cpu_test::random_values(elements, 1));
      const Tensor momentum = cpu_test::tensor(*backend, {elements}, cpu_test::random_values(elements, 2));
      const Tensor update = cpu_test::unset(*backend, {elements});
      const Tensor sums = cpu_test::unset(*backend, {4}, DType::float64), again = cpu_test::unset(*backend, {4}, DType::float64);
      backend->optimizer().muon_momentum(backend->compute_stream(),
                                         {true, true, gradient, momentum, update, sums, 16384, hyper(*backend, {0.95, 1.0})});
      backend->optimizer().square_sums(backend->compute_stream(), {update, again, 16384});
      CHECK(bits(*backend, sums) == bits(*backend, again));
      if (expected.empty()) expected = bits(*backend, sums);
      CHECK(bits(*backend, sums) == expected);
    }
}

TEST_CASE("sums and counts over every floating type") {
  const auto backend = cpu_test::make(3);
  std::vector<double> values = cpu_test::random_integers(elements, 5);
  double total = 0, squares = 0;
  for (const double value : values) total += value;
  for (size_t i = 0; i < 16384; ++i) squares += values[i] * values[i];
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    INFO(name_of(dtype));
    const Tensor in = cpu_test::tensor(*backend, {elements}, values, dtype);
    const Tensor sum = cpu_test::unset(*backend, {1}, DType::float64), square = cpu_test::unset(*backend, {4}, DType::float64);
    const Tensor count = backend->allocate({1}, DType::int64, MemoryCategory::activations, "count");
    backend->optimizer().sum(backend->compute_stream(), {in, sum});
    backend->optimizer().square_sums(backend->compute_stream(), {in, square, 16384});
    backend->optimizer().count_non_finite(backend->compute_stream(), {in, count});
    CHECK(to_doubles(*backend, sum)[0] == total);
    CHECK(to_doubles(*backend, square)[0] == squares);
    CHECK(to_doubles(*backend, count)[0] == 0);
    std::vector<double> broken = values;
    broken[0] = std::nan(""), broken[12345] = std::numeric_limits<double>::infinity();
    broken[elements - 1] = -std::numeric_limits<double>::infinity();
    from_doubles(*backend, broken, in);
    backend->optimizer().count_non_finite(backend->compute_stream(), {in, count});
    CHECK(to_doubles(*backend, count)[0] == 3);
  }
}
