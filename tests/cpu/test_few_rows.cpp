// Products of a few rows with a weight: each row has the bits that it has alone, for any number of threads.
#include "backend/cpu/instruction_set.h"
#include "cpu/cpu_support.h"

using namespace dmuon;
using cpu_test::bits;

TEST_CASE("products of up to sixteen rows: bits of a row alone, for every instruction set and thread count") {
  for (const std::string& set : {std::string("baseline"), std::string("auto")})
    for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {61, 37}, {300, 515}, {13, 2085}}) {
      const auto alone = cpu_test::make(1, set);
      const std::vector<double> x = cpu_test::random_values(16 * k, 1), w = cpu_test::random_values(n * k, 2);
      const std::vector<double> bias = cpu_test::random_values(n, 3), before = cpu_test::random_values(16 * n, 4);
      const auto product = [&](Backend& backend, int64_t first, int64_t rows, int64_t n_, int64_t k_) {
        const auto part = [&](const std::vector<double>& values, int64_t columns) {
          return cpu_test::tensor(backend, {rows, columns}, {values.begin() + first * columns, values.begin() + (first + rows) * columns});
        };
        Multiply m;
        m.a = part(x, k_), m.b = cpu_test::tensor(backend, {n_, k_}, w), m.c = part(before, n_),
        m.bias = cpu_test::tensor(backend, {n_}, bias);
        m.transpose_b = true, m.alpha = 0.75, m.beta = -0.5;
        backend.matrix().multiply(backend.compute_stream(), m);
        return bits(backend, m.c);
      };
      std::vector<uint32_t> expected;
      for (int64_t row = 0; row < 16; ++row)
        for (uint32_t word : product(*alone, row, 1, n, k)) expected.push_back(word);
      for (int threads : {1, 2, 3})
        for (int64_t rows = 1; rows <= 16; ++rows) {
          INFO(set << ", " << n << " x " << k << ", " << rows << " rows, " << threads << " threads");
          const auto together = cpu_test::make(threads, set);
          CHECK(product(*together, 0, rows, n, k) == std::vector<uint32_t>(expected.begin(), expected.begin() + rows * n));
        }
    }
}
