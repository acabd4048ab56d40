#include <cmath>

#include "cpu/cpu_support.h"

using namespace dmuon;
using cpu_test::bits;

namespace {

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, symmetric;
};
const std::vector<Case> cases = {
    {1, 1, 1, false, false, false},    {5, 3, 7, true, false, false},       {63, 65, 257, false, true, false},
    {130, 97, 513, true, true, false}, {128, 128, 2048, false, true, true}, {256, 256, 8192, false, true, true},
    {77, 77, 300, true, false, true},  {97, 97, 33, false, true, true},     {200, 500, 200, false, false, false},
    {16, 16, 16, false, true, true},   {1, 401, 385, false, false, false},  {401, 1, 3, true, true, false},
    {1, 1, 401, false, true, true},    {401, 401, 1, true, false, true},    {367, 367, 385, true, false, true},
    {367, 367, 257, false, true, true}};

Shape left_shape(const Case& c) { return c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}; }
Shape right_shape(const Case& c) { return c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}; }

// Products of the operands with these seeds in one batch.
std::vector<std::vector<uint32_t>> products(Backend& backend, const Case& c, const std::vector<uint64_t>& seeds) {
  BatchedProduct product;
  product.transpose_a = c.transpose_a, product.transpose_b = c.transpose_b, product.symmetric = c.symmetric;
  product.beta = 0.5, product.diagonal = 0.25;
  for (const uint64_t seed : seeds) {
    product.a.push_back(cpu_test::tensor(backend, left_shape(c), cpu_test::random_values(c.m * c.k, seed)));
    product.b.push_back(c.symmetric ? product.a.back()
                                    : cpu_test::tensor(backend, right_shape(c), cpu_test::random_values(c.n * c.k, seed + 100)));
    std::vector<double> added = cpu_test::random_values(c.m * c.n, seed + 200);
    if (c.symmetric)
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < i; ++j) added[static_cast<size_t>(j * c.n + i)] = added[static_cast<size_t>(i * c.n + j)];
    product.c.push_back(cpu_test::tensor(backend, {c.m, c.n}, added));
    product.d.push_back(seed % 2 == 0 ? product.c.back() : cpu_test::unset(backend, {c.m, c.n}));
    product.alphas.push_back(1.0 + 0.1 * static_cast<double>(seed));
  }
  backend.matrix().batched_product(backend.compute_stream(), product);
  std::vector<std::vector<uint32_t>> results;
  for (const Tensor& d : product.d) results.push_back(bits(backend, d));
  return results;
}

}  // namespace

TEST_CASE("batched products have the same bits for every thread count and batch composition") {
  for (const std::string& instruction_set : cpu::supported_instruction_sets()) {
    const auto one = cpu_test::make(1, instruction_set);
    for (const Case& c : cases) {
      INFO(instruction_set << " " << c.m << "x" << c.n << "x" << c.k);
      std::vector<std::vector<uint32_t>> alone;
      for (const uint64_t seed : {1, 2, 3}) alone.push_back(products(*one, c, {seed}).front());
      for (int threads = 1; threads <= 3; ++threads) {
        const auto backend = cpu_test::make(threads, instruction_set);
        CHECK(products(*backend, c, {1, 2, 3}) == alone);
        CHECK(products(*backend, c, {3, 1}) == std::vector{alone[2], alone[0]});
        CHECK(products(*backend, c, {2}).front() == alone[1]);
      }
    }
  }
}

TEST_CASE("symmetric products are mirrored bit for bit") {
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const int threads : {1, 2, 3}) {
      const auto backend = cpu_test::make(threads, instruction_set);
      for (const Case& c : cases) {
        if (!c.symmetric) continue;
        const std::vector<uint32_t> d = products(*backend, c, {1}).front();
        int64_t different = 0;
        for (int64_t i = 0; i < c.m; ++i)
          for (int64_t j = 0; j < i; ++j) different += d[static_cast<size_t>(i * c.n + j)] != d[static_cast<size_t>(j * c.n + i)];
        INFO(instruction_set << " " << c.m << "x" << c.k << " threads " << threads);
        CHECK(different == 0);
      }
    }
}

TEST_CASE("products of integers are exact, overwriting whatever the output held") {
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const Case& c : cases) {
      if (c.m * c.n * c.k > 10'000'000) continue;
      const auto backend = cpu_test::make(2, instruction_set);
      const std::vector<double> a = cpu_test::random_integers(c.m * c.k, 1);
      const std::vector<double> b = c.symmetric ? a : cpu_test::random_integers(c.n * c.k, 2);
      std::vector<double> expected(static_cast<size_t>(c.m * c.n));
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < c.k; ++k)
            sum += a[static_cast<size_t>(c.transpose_a ? k * c.m + i : i * c.k + k)] *
                   b[static_cast<size_t>(c.transpose_b ? j * c.k + k : k * c.n + j)];
          expected[static_cast<size_t>(i * c.n + j)] = sum;
        }
      INFO(instruction_set << " " << c.m << "x" << c.n << "x" << c.k);
      const Tensor left = cpu_test::tensor(*backend, left_shape(c), a), right = cpu_test::tensor(*backend, right_shape(c), b);
      BatchedProduct product;
      product.a = {left}, product.b = {right}, product.d = {cpu_test::unset(*backend, {c.m, c.n})};
      product.transpose_a = c.transpose_a, product.transpose_b = c.transpose_b, product.symmetric = c.symmetric;
      backend->matrix().batched_product(backend->compute_stream(), product);
      CHECK(to_doubles(*backend, product.d[0]) == expected);
      Multiply multiply;
      multiply.a = left, multiply.b = right, multiply.c = cpu_test::unset(*backend, {c.m, c.n});
      multiply.transpose_a = c.transpose_a, multiply.transpose_b = c.transpose_b;
      backend->matrix().multiply(backend->compute_stream(), multiply);
      CHECK(to_doubles(*backend, multiply.c) == expected);
    }
}

TEST_CASE("symmetric products of integers have the bits of full ones") {
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const int threads : {1, 2, 3})
      for (auto [n, k] :
           {std::pair<int64_t, int64_t>{1, 7}, {7, 1}, {16, 16}, {33, 128}, {97, 97}, {128, 128}, {255, 400}, {384, 384}, {401, 257}})
        for (const bool transpose_a : {false, true}) {
          INFO(instruction_set << " " << n << "x" << k << (transpose_a ? " x^T x" : " x x^T") << ", threads " << threads);
          const auto backend = cpu_test::make(threads, instruction_set);
          const Tensor x = cpu_test::tensor(*backend, transpose_a ? Shape{k, n} : Shape{n, k}, cpu_test::random_integers(n * k, 1));
          const auto square = [&](const Tensor& in, bool transposed_a, bool transposed_b, const Tensor& added, bool symmetric) {
            BatchedProduct product;
            product.a = product.b = {in}, product.d = {cpu_test::unset(*backend, {n, n})};
            product.transpose_a = transposed_a, product.transpose_b = transposed_b, product.symmetric = symmetric;
            product.alpha = 2.0;
            if (added.defined()) product.c = {added}, product.beta = -3.0, product.diagonal = 5.0;
            backend->matrix().batched_product(backend->compute_stream(), product);
            return product.d.front();
          };
          const Tensor r = square(x, transpose_a, !transpose_a, {}, true);
          CHECK(bits(*backend, r) == bits(*backend, square(x, transpose_a, !transpose_a, {}, false)));
          // r is symmetric itself: r r, as in the polynomial. Small entries keep it exact.
          std::vector<double> values = to_doubles(*backend, r);
          for (double& value : values) value = static_cast<double>(static_cast<int64_t>(value) % 8);
          const Tensor small = cpu_test::tensor(*backend, {n, n}, values);
          CHECK(bits(*backend, square(small, false, false, small, true)) == bits(*backend, square(small, false, false, small, false)));
        }
}

// One iteration on every matrix: r = x x^T, p = 2 I - r + r r / 4, x' = p x; without queues product by product.
std::vector<std::vector<uint32_t>> sequence(Backend& backend, int64_t m, int64_t n, int64_t matrices, int queues) {
  BatchedProduct gram, polynomial, apply;
  for (int64_t i = 0; i < matrices; ++i) {
    const Tensor x = cpu_test::tensor(backend, {m, n}, cpu_test::random_values(m * n, static_cast<uint64_t>(i)));
    const Tensor r = cpu_test::unset(backend, {m, m}), p = cpu_test::unset(backend, {m, m}), next = cpu_test::unset(backend, {m, n});
    gram.a.push_back(x), gram.b.push_back(x), gram.d.push_back(r);
    polynomial.a.push_back(r), polynomial.b.push_back(r), polynomial.c.push_back(r), polynomial.d.push_back(p);
    apply.a.push_back(p), apply.b.push_back(x), apply.d.push_back(next);
  }
  gram.transpose_b = gram.symmetric = polynomial.symmetric = true;
  gram.alpha = 0.01, polynomial.alpha = 0.25, polynomial.beta = -1.0, polynomial.diagonal = 2.0;
  const std::vector<BatchedProduct> products{gram, polynomial, apply};
  if (queues > 0)
    backend.matrix().product_sequence(backend.compute_stream(), {products, queues});
  else
    for (const BatchedProduct& product : products) backend.matrix().batched_product(backend.compute_stream(), product);
  std::vector<std::vector<uint32_t>> results;
  for (const BatchedProduct& product : products)
    for (const Tensor& d : product.d) results.push_back(bits(backend, d));
  return results;
}

TEST_CASE("a sequence of products has the bits of its products one by one, whatever the threads") {
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 5}, {33, 70}, {128, 128}, {97, 403}})
      for (const int64_t matrices : {1, 2, 4}) {
        const auto expected = sequence(*cpu_test::make(1, instruction_set), m, n, matrices, 0);
        for (const int threads : {1, 2, 3})
          for (const int queues : {1, 2, 3}) {
            INFO(instruction_set << ", " << matrices << " of " << m << "x" << n << ", threads " << threads << ", queues " << queues);
            CHECK(sequence(*cpu_test::make(threads, instruction_set), m, n, matrices, queues) == expected);
          }
      }
}

TEST_CASE("results wider than a block of columns are exact") {
  // 3,100 columns: a second block, mirrored across the border.
  const auto integers = [](int64_t count, int64_t salt) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>((i * 7 + salt) % 17 - 8));
    return values;
  };
  const std::vector<Case> wide = {
      {3100, 3100, 3, false, true, true}, {3100, 3100, 3, true, false, true}, {5, 3100, 7, false, false, false}};
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const Case& c : wide) {
      INFO(instruction_set << " " << c.m << "x" << c.n << "x" << c.k);
      const auto backend = cpu_test::make(2, instruction_set);
      const std::vector<double> a = integers(c.m * c.k, 1), b = c.symmetric ? a : integers(c.n * c.k, 3);
      BatchedProduct product;
      product.transpose_a = c.transpose_a, product.transpose_b = c.transpose_b, product.symmetric = c.symmetric;
      product.a = {cpu_test::tensor(*backend, left_shape(c), a)};
      product.b = {c.symmetric ? product.a[0] : cpu_test::tensor(*backend, right_shape(c), b)};
      product.d = {cpu_test::unset(*backend, {c.m, c.n})};
      backend->matrix().batched_product(backend->compute_stream(), product);
      const std::vector<double> d = to_doubles(*backend, product.d[0]);
      int64_t different = 0;
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j) {
          double sum = 0.0;
          for (int64_t k = 0; k < c.k; ++k)
            sum += a[static_cast<size_t>(c.transpose_a ? k * c.m + i : i * c.k + k)] *
                   b[static_cast<size_t>(c.transpose_b ? j * c.k + k : k * c.n + j)];
          different += d[static_cast<size_t>(i * c.n + j)] != sum;
        }
      CHECK(different == 0);
    }
}

TEST_CASE("an empty sum leaves beta c plus the diagonal") {
  const auto backend = cpu_test::make(1);
  BatchedProduct product;
  product.a = {cpu_test::tensor(*backend, {2, 0}, {})}, product.b = {cpu_test::tensor(*backend, {0, 2}, {})};
  product.c = {cpu_test::tensor(*backend, {2, 2}, {1, 2, 3, 4})}, product.d = {cpu_test::unset(*backend, {2, 2})};
  product.beta = 2.0, product.diagonal = 10.0;
  backend->matrix().batched_product(backend->compute_stream(), product);
  CHECK(to_doubles(*backend, product.d[0]) == std::vector<double>{12, 4, 6, 18});
}
