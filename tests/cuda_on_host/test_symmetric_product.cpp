// Products with symmetric results on the device, run on the host: against sums in float64, equal bits for every tile and depth.
#include <cmath>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

// X X^T, X^T X, A B of two polynomials of one symmetric matrix, and A^T B^T of the same.
enum class Layout : uint8_t { rows, columns, plain, both };

struct Case {
  Layout layout = Layout::rows;
  int64_t n = 1, k = 1;
  DType dtype = DType::float16;
  double beta = 0.0, diagonal = 0.0;
  bool alias = false;
  int64_t offset = 0;  // of every operand from an aligned address, in elements
};

using Doubles = std::vector<double>;

Tensor placed(Backend& backend, const Shape& shape, DType dtype, const Doubles& values, int64_t offset) {
  const Tensor block = backend.allocate(Shape{shape.elements() + offset}, dtype, MemoryCategory::workspace, "operand");
  const Tensor tensor = block.flat(offset, shape.elements()).reshape(shape);
  from_doubles(backend, values, tensor);
  return tensor;
}

Doubles random_values(int64_t count, uint64_t seed, double deviation) {
  const Random random(seed, RandomStream::test);
  Doubles values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = deviation * random.normal(i);
  return values;
}

// [n, n] in float64.
Doubles product(const Doubles& a, const Doubles& b, int64_t n, int64_t k, bool a_along_k, bool b_along_k) {
  Doubles c(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += a[static_cast<size_t>(a_along_k ? i * k + l : l * n + i)] * b[static_cast<size_t>(b_along_k ? j * k + l : l * n + j)];
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  return c;
}

// The product of a batch, its expected values, and how far a correct one may be off.
struct Prepared {
  BatchedProduct product;
  std::vector<Doubles> expected;
  double tolerance = 0;
};

Prepared prepare(Backend& backend, const Case& test, int64_t batch) {
  const int64_t n = test.n, k = test.layout == Layout::plain || test.layout == Layout::both ? n : test.k;
  Prepared result;
  BatchedProduct& p = result.product;
  p.symmetric = true;
  p.transpose_a = test.layout == Layout::columns || test.layout == Layout::both;
  p.transpose_b = test.layout == Layout::rows || test.layout == Layout::both;
  p.beta = test.beta, p.diagonal = test.diagonal;
  for (int64_t i = 0; i < batch; ++i) {
    const auto seed = static_cast<uint64_t>(10 * i);
    const Shape shape = test.layout == Layout::rows ? Shape{n, k} : test.layout == Layout::columns ? Shape{k, n} : Shape{n, n};
    Tensor a, b;
    if (test.layout == Layout::rows || test.layout == Layout::columns) {
      a = b = placed(backend, shape, test.dtype, random_values(n * k, seed + 1, 0.5), test.offset);
    } else {
      // A diagonal matrix and one with the same vectors commute: a full matrix and a multiple of the identity.
      Doubles half = random_values(n * n, seed + 1, 0.5), multiple(static_cast<size_t>(n * n), 0.0);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < r; ++c) half[static_cast<size_t>(c * n + r)] = half[static_cast<size_t>(r * n + c)];
      for (int64_t r = 0; r < n; ++r) multiple[static_cast<size_t>(r * n + r)] = 0.75;
      a = placed(backend, shape, test.dtype, half, test.offset);
      b = i % 2 == 0 ? a : placed(backend, shape, test.dtype, multiple, test.offset);
    }
    const double alpha = 0.5 + static_cast<double>(i);
    Doubles c_values = random_values(n * n, seed + 2, 1.0);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < r; ++c) c_values[static_cast<size_t>(c * n + r)] = c_values[static_cast<size_t>(r * n + c)];
    const Tensor c = placed(backend, Shape{n, n}, test.dtype, c_values, test.offset);
    const Tensor d = test.alias ? c : placed(backend, Shape{n, n}, test.dtype, Doubles(static_cast<size_t>(n * n), NAN), test.offset);
    Doubles expected = product(to_doubles(backend, a), to_doubles(backend, b), n, k, !p.transpose_a, p.transpose_b);
    const Doubles stored_c = to_doubles(backend, c);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t col = 0; col < n; ++col) {
        const auto at = static_cast<size_t>(r * n + col);
        expected[at] = alpha * expected[at] + test.beta * stored_c[at] + (r == col ? test.diagonal : 0.0);
      }
    p.a.push_back(a), p.b.push_back(b), p.d.push_back(d), p.alphas.push_back(alpha);
    if (test.beta != 0.0) p.c.push_back(c);
    result.expected.push_back(expected);
  }
  // Of the sum in float32, and of the rounding of the result.
  result.tolerance = 4e-7 * static_cast<double>(k) + (test.dtype == DType::float16 ? 0x1p-11 : 0x1p-23);
  return result;
}

void check_values(Backend& backend, const Prepared& prepared, int64_t n) {
  for (size_t i = 0; i < prepared.expected.size(); ++i) {
    const Doubles found = to_doubles(backend, prepared.product.d[i]);
    size_t wrong = 0, unsymmetric = 0;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < n; ++c) {
        const double expected = prepared.expected[i][static_cast<size_t>(r * n + c)], value = found[static_cast<size_t>(r * n + c)];
        wrong += std::fabs(value - expected) <= prepared.tolerance * (std::fabs(expected) + 1.0) ? 0 : 1;
        unsymmetric += value == found[static_cast<size_t>(c * n + r)] ? 0 : 1;
      }
    CHECK(wrong == 0);
    CHECK(unsymmetric == 0);
  }
}

std::string name_of(const Case& c) {
  return text("layout ", static_cast<int>(c.layout), " n ", c.n, " k ", c.k, " ", dmuon::name_of(c.dtype), " beta ", c.beta, " offset ",
              c.offset);
}

void run(Backend& backend, const Case& test) {
  INFO(name_of(test));
  const Prepared prepared = prepare(backend, test, 2);
  backend.matrix().batched_product(backend.compute_stream(), prepared.product);
  check_values(backend, prepared, test.n);
}

}  // namespace

TEST_CASE("symmetric products agree with sums in float64 at any size") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  for (const DType dtype : {DType::float16, DType::float32})
    for (const Layout layout : {Layout::rows, Layout::columns, Layout::plain, Layout::both}) {
      run(*device, {layout, 1, 1, dtype});
      run(*device, {layout, 7, 19, dtype, -0.5, 2.0});
      run(*device, {layout, 64, 40, dtype, 0.25, 0.0});
      run(*device, {layout, 65, 33, dtype, 0.0, 1.5});
      run(*device, {layout, 72, 64, dtype, -0.5, 1.0, true});
      run(*device, {layout, 72, 64, dtype, -0.5, 1.0, false, 3});
    }
}

TEST_CASE("every tile and depth of the symmetric product gives the same bits") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  DeviceUpdates& updates = *device_updates(*device);
  for (const Layout layout : {Layout::rows, Layout::columns, Layout::plain})
    for (const int64_t k : {72, 33}) {
      if (k == 33 && layout == Layout::plain) continue;
      const int64_t n = k == 72 ? 136 : 130;
      const Case test{layout, n, k, DType::float16, -0.5, 1.0};
      INFO(name_of(test));
      std::vector<Doubles> first;
      const Prepared prepared = prepare(*device, test, 1);
      const std::vector<std::string> forms = updates.symmetric_forms(SymmetricShape::of(prepared.product));
      REQUIRE(forms.size() >= 4);
      for (const std::string& form : forms) {
        INFO(form);
        updates.use_symmetric_form(SymmetricShape::of(prepared.product), form);
        for (const Tensor& d : prepared.product.d) from_doubles(*device, Doubles(static_cast<size_t>(n * n), NAN), d);
        device->matrix().batched_product(device->compute_stream(), prepared.product);
        check_values(*device, prepared, n);
        std::vector<Doubles> results;
        for (const Tensor& d : prepared.product.d) results.push_back(to_doubles(*device, d));
        if (first.empty()) first = results;
        CHECK(results == first);
      }
    }
}

TEST_CASE("a matrix has the same product alone and in a batch of more than one launch") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const Case test{Layout::rows, 9, 16};
  const Prepared batch = prepare(*device, test, 83);
  device->matrix().batched_product(device->compute_stream(), batch.product);
  check_values(*device, batch, test.n);
  const Prepared alone = prepare(*device, test, 1);
  device->matrix().batched_product(device->compute_stream(), alone.product);
  CHECK(to_doubles(*device, alone.product.d[0]) == to_doubles(*device, batch.product.d[0]));
}

TEST_CASE("what is not finite reaches the product, and unknown forms are refused by name") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const Prepared prepared = prepare(*device, {Layout::rows, 40, 24}, 1);
  Doubles values = to_doubles(*device, prepared.product.a[0]);
  values[5 * 24 + 3] = NAN;
  from_doubles(*device, values, prepared.product.a[0]);
  device->matrix().batched_product(device->compute_stream(), prepared.product);
  const Doubles found = to_doubles(*device, prepared.product.d[0]);
  CHECK(std::isnan(found[5 * 40 + 0]));
  CHECK(std::isnan(found[0 * 40 + 5]));
  CHECK(!std::isnan(found[0]));
  CHECK_THROWS_AS(device_updates(*device)->use_symmetric_form(SymmetricShape::of(prepared.product), "63x1x9"), DeviceError);
  const auto cpu = make_cpu_backend();
  CHECK(device_updates(*cpu) == nullptr);
}

TEST_CASE("the library's forms, in block rows and in full, are right, and the same alone and in a batch") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  DeviceUpdates& updates = *device_updates(*device);
  for (const Layout layout : {Layout::rows, Layout::columns, Layout::plain, Layout::both})
    for (const Case& test :
         {Case{layout, 130, 24, DType::float16, -0.5, 1.0}, Case{layout, 200, 17, DType::float16},
          Case{layout, 129, 40, DType::float16, 0.25, 0.0, true}, Case{layout, 70, 9, DType::float16, 0.0, 1.0, false, 3}}) {
      INFO(name_of(test));
      const SymmetricShape shape = SymmetricShape::of(prepare(*device, test, 1).product);
      const std::vector<std::string> neutral = updates.symmetric_forms(shape), all = updates.symmetric_forms(shape, true);
      REQUIRE(all.size() >= neutral.size() + 2);
      CHECK(all.back() == "full");
      for (size_t i = neutral.size(); i < all.size(); ++i) {
        INFO(all[i]);
        updates.use_symmetric_form(shape, all[i]);
        // What is chosen holds for any number of matrices.
        const Prepared alone = prepare(*device, test, 1), three = prepare(*device, test, 3);
        for (const Prepared* each : {&alone, &three}) {
          device->matrix().batched_product(device->compute_stream(), each->product);
          // The diagonal is added to a product that was rounded already.
          Prepared twice = *each;
          twice.tolerance += test.diagonal != 0.0 ? 0x1p-11 : 0.0;
          check_values(*device, twice, test.n);
        }
        CHECK(to_doubles(*device, alone.product.d[0]) == to_doubles(*device, three.product.d[0]));
      }
      updates.use_symmetric_form(shape, neutral.front());
    }
}

TEST_CASE("a form of the kernel takes the place of one of the library, and float32 has its own") {
  const auto device = open_backend_plugin(DMUON_CUDA_ON_HOST);
  DeviceUpdates& updates = *device_updates(*device);
  const auto products = [&] {
    device->reset_costs();
    const Prepared half = prepare(*device, {Layout::rows, 130, 24, DType::float16}, 1);
    device->matrix().batched_product(device->compute_stream(), half.product);
    return to_doubles(*device, half.product.d[0]);
  };
  const SymmetricShape shape = SymmetricShape::of(prepare(*device, {Layout::rows, 130, 24}, 1).product);
  const Doubles of_kernel = products();
  updates.use_symmetric_form(shape, "blocks64");
  products();
  updates.use_symmetric_form(shape, "64x64x3");
  CHECK(products() == of_kernel);
  updates.use_symmetric_form(shape, "full");
  run(*device, {Layout::rows, 130, 24, DType::float32});
  CHECK_THROWS_AS(updates.use_symmetric_form(shape, "blocks32"), DeviceError);
}
