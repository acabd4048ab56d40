// Products of the CUDA backend: in float32 against the reference backend, in bfloat16 and float16 against sums in float64 of
// the rounded operands.
#include <cmath>

#include "dmuon/core/random.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;
  double at(int64_t i, int64_t j, bool transposed) const {
    return transposed ? values[size_t(j * columns + i)] : values[size_t(i * columns + j)];
  }
};

class Device {
 public:
  Tensor random(const Shape& shape, DType dtype) {
    const Tensor tensor = backend->allocate(shape, dtype, MemoryCategory::workspace, "test");
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    for (double& value : values) value = Random(7, RandomStream::test).normal(draws_++);
    from_doubles(*backend, values, tensor);
    return tensor;
  }
  Matrix read(const Tensor& tensor) { return {tensor.rows(), tensor.size(-1), to_doubles(*backend, tensor)}; }

  std::unique_ptr<Backend> backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  Tensor same;  // in several batches

 private:
  uint64_t draws_ = 0;
};

// Largest difference from alpha op(a) op(b) + beta c (+ bias), relative to the root mean square of that.
double product_error(const Matrix& d, const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& bias, bool ta, bool tb, double alpha,
                     double beta, double diagonal = 0) {
  const int64_t inner = ta ? a.rows : a.columns;
  double worst = 0, squares = 0;
  for (int64_t i = 0; i < d.rows; ++i)
    for (int64_t j = 0; j < d.columns; ++j) {
      double expected = i == j ? diagonal : 0;
      for (int64_t k = 0; k < inner; ++k) expected += alpha * a.at(i, k, ta) * b.at(k, j, tb);
      if (beta != 0) expected += beta * c.at(i, j, false);
      if (!bias.values.empty()) expected += bias.values[size_t(j)];
      worst = std::max(worst, std::abs(d.at(i, j, false) - expected));
      squares += expected * expected;
    }
  return worst / std::sqrt(squares / static_cast<double>(d.rows * d.columns));
}

}  // namespace

TEST_CASE("float32 products agree with the reference") {
  const auto reference = kernel_suite::open_reference();
  kernel_suite::compare_matrix_kernels(*open_backend_plugin(DMUON_CUDA_ON_HOST), *reference);
}

TEST_CASE("bfloat16 products have a result of float32 or bfloat16 and add in float32") {
  Device device;
  Backend& backend = *device.backend;
  for (const DType result : {DType::float32, DType::bfloat16})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool with_bias : {false, true}) {
          INFO(name_of(result) << ", transposed " << ta << tb << ", bias " << with_bias);
          const int64_t m = 33, n = 17, k = 260;
          Multiply multiply;
          multiply.a = device.random(ta ? Shape{k, m} : Shape{m, k}, DType::bfloat16);
          multiply.b = device.random(tb ? Shape{n, k} : Shape{k, n}, DType::bfloat16);
          multiply.c = device.random({m, n}, result);
          if (with_bias) multiply.bias = device.random({n}, DType::bfloat16);
          multiply.transpose_a = ta, multiply.transpose_b = tb, multiply.alpha = 0.5, multiply.beta = -2;
          const Matrix a = device.read(multiply.a), b = device.read(multiply.b), c = device.read(multiply.c);
          const Matrix bias = with_bias ? device.read(multiply.bias) : Matrix{};
          backend.matrix().multiply(backend.compute_stream(), multiply);
          const double error = product_error(device.read(multiply.c), a, b, c, bias, ta, tb, 0.5, -2);
          CHECK(error < (result == DType::float32 ? 1e-5 : 4e-2));
        }
}

TEST_CASE("products whose bias cannot go through the library's epilogue are the same") {
  Device device;
  Backend& backend = *device.backend;
  Multiply multiply;
  multiply.a = device.random({5, 8}, DType::float32), multiply.b = device.random({8, 7}, DType::float32);
  multiply.c = device.random({5, 7}, DType::float32);
  const Tensor biases = device.random({8}, DType::float32);
  multiply.bias = biases.flat(1, 7);  // aligned to one element only
  backend.matrix().multiply(backend.compute_stream(), multiply);
  CHECK(product_error(device.read(multiply.c), device.read(multiply.a), device.read(multiply.b), {}, device.read(multiply.bias), false,
                      false, 1, 0) < 1e-6);
  // Nothing to add up: only the bias remains, and c is not read.
  multiply.a = device.random({5, 0}, DType::float32), multiply.b = device.random({0, 7}, DType::float32);
  from_doubles(backend, std::vector<double>(35, std::nan("")), multiply.c);
  backend.matrix().multiply(backend.compute_stream(), multiply);
  CHECK(product_error(device.read(multiply.c), device.read(multiply.a), device.read(multiply.b), {}, device.read(multiply.bias), false,
                      false, 1, 0) < 1e-6);
}

TEST_CASE("float16 batches add in float32, mirror exactly, and give every matrix the same bits in any company") {
  Device device;
  Backend& backend = *device.backend;
  for (const int64_t n : {1, 33, 100})
    for (const bool symmetric : {false, true}) {
      INFO(n << (symmetric ? " symmetric" : ""));
      BatchedProduct product;
      const int64_t k = 70;
      for (int i = 0; i < 70; ++i) {  // more than one list of addresses holds
        product.a.push_back(device.random({n, k}, DType::float16));
        product.b.push_back(symmetric ? product.a.back() : device.random({n, k}, DType::float16));
        product.d.push_back(device.random({n, n}, DType::float16));
      }
      product.transpose_b = true, product.alpha = 0.25, product.diagonal = 1.5, product.symmetric = symmetric;
      backend.matrix().batched_product(backend.compute_stream(), product);
      for (const size_t i : {0, 69}) {
        const Matrix d = device.read(product.d[i]);
        CHECK(product_error(d, device.read(product.a[i]), device.read(product.b[i]), {}, {}, false, true, 0.25, 0, 1.5) < 1e-2);
        for (int64_t r = 0; symmetric && r < n; ++r)
          for (int64_t s = 0; s < r; ++s) REQUIRE(d.at(r, s, false) == d.at(s, r, false));
        BatchedProduct alone = product;
        alone.a = {product.a[i]}, alone.b = {product.b[i]}, alone.d = {device.random({n, n}, DType::float16)};
        backend.matrix().batched_product(backend.compute_stream(), alone);
        CHECK(device.read(alone.d[0]).values == d.values);
      }
    }
}

TEST_CASE("a sequence of products shares scratch within a queue") {
  Device device;
  Backend& backend = *device.backend;
  for (const int queues : {1, 2, 5}) {
    std::vector<Tensor> x, y, scratch;
    for (int i = 0; i < 5; ++i) x.push_back(device.random({24, 24}, DType::float32)), y.push_back(device.random({24, 24}, DType::float32));
    for (int i = 0; i < queues; ++i) scratch.push_back(device.random({24, 24}, DType::float32));
    BatchedProduct square, cube;  // scratch = x x, y = scratch x
    for (int i = 0; i < 5; ++i) {
      square.a.push_back(x[size_t(i)]), square.b.push_back(x[size_t(i)]), square.d.push_back(scratch[size_t(i % queues)]);
      cube.a.push_back(scratch[size_t(i % queues)]), cube.b.push_back(x[size_t(i)]), cube.d.push_back(y[size_t(i)]);
    }
    backend.matrix().product_sequence(backend.compute_stream(), {{square, cube}, queues});
    for (size_t i = 0; i < 5; ++i) {
      Multiply again;
      again.a = x[i], again.b = x[i], again.c = device.random({24, 24}, DType::float32);
      backend.matrix().multiply(backend.compute_stream(), again);
      const Matrix expected = device.read(again.c);
      CHECK(product_error(device.read(y[i]), expected, device.read(x[i]), {}, {}, false, false, 1, 0) < 1e-5);
    }
  }
}

TEST_CASE("columns of bfloat16 are summed in float32") {
  Device device;
  Backend& backend = *device.backend;
  ColumnSum sum;
  sum.in = device.random({1100, 37}, DType::bfloat16), sum.out = device.random({37}, DType::float32);
  const Matrix in = device.read(sum.in);
  backend.matrix().column_sum(backend.compute_stream(), sum);
  const std::vector<double> out = to_doubles(backend, sum.out);
  for (int64_t j = 0; j < 37; ++j) {
    double expected = 0;
    for (int64_t i = 0; i < 1100; ++i) expected += in.at(i, j, false);
    CHECK(std::abs(out[size_t(j)] - expected) < 1e-3);
  }
}

TEST_CASE("a shape-only device counts products and their scratch") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST, {.mode = HostMode::shape_only});
  Multiply multiply;
  multiply.a = backend->allocate({64, 32}, DType::float32, MemoryCategory::activations, "a");
  multiply.b = backend->allocate({32, 16}, DType::float32, MemoryCategory::activations, "b");
  multiply.c = backend->allocate({64, 16}, DType::float32, MemoryCategory::activations, "c");
  backend->matrix().multiply(backend->compute_stream(), multiply);
  CHECK(backend->costs().at("multiply").flops == 2.0 * 64 * 16 * 32);
  CHECK(backend->allocator().statistics()[MemoryCategory::workspace].peak >= (int64_t{32} << 20));
}

// With CUDA_ON_HOST_FAIL=batch_by_pointers=6: a library whose algorithm, chosen for another number of matrices, does not take six.
TEST_CASE("a number of matrices that the library refuses goes one by one, and so do all others of that shape", "[.refused]") {
  Device device;
  std::vector<double> first;
  for (const int count : {5, 6, 7}) {
    BatchedProduct product;
    for (int i = 0; i < count; ++i) {
      product.a.push_back(i == 0 && !first.empty() ? device.same : device.random({9, 21}, DType::float16));
      product.b.push_back(product.a.back());
      product.d.push_back(device.random({9, 9}, DType::float16));
    }
    device.same = product.a.front();
    product.transpose_b = true;
    device.backend->matrix().batched_product(device.backend->compute_stream(), product);
    for (size_t i = 0; i < product.d.size(); ++i) {
      const Matrix a = device.read(product.a[i]);
      CHECK(product_error(device.read(product.d[i]), a, a, {}, {}, false, true, 1, 0) < 1e-2);
    }
    const std::vector<double> bits = device.read(product.d.front()).values;
    if (first.empty()) first = bits;
    CHECK(bits == first);
  }
}
