// Matrix products: our own against the library's on the shapes of training and of Newton-Schulz, full and symmetric.
#include "dmuon/backend/device_updates.h"
#include "dmuon/core/text.h"
#include "support.h"

namespace dmuon::bench {
namespace {

struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};

Json row_of(const Arguments& arguments, Backend& backend, const Product& p, bool symmetric, DType dtype) {
  const Tensor a = random_tensor(backend, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, 1.0, dtype);
  const Tensor b = symmetric ? a : random_tensor(backend, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, 1.0, dtype);
  const Tensor c = random_tensor(backend, {p.m, p.n}, 1.0, dtype), d = random_tensor(backend, {p.m, p.n}, 1.0, dtype);
  Multiply library;
  library.a = a, library.b = b, library.c = c, library.transpose_a = p.transpose_a, library.transpose_b = p.transpose_b;
  BatchedProduct own;
  own.a = {a}, own.b = {b}, own.d = {d}, own.transpose_a = p.transpose_a, own.transpose_b = p.transpose_b, own.symmetric = symmetric;
  const Comparison result = compare(
      arguments, [&] { backend.matrix().batched_product(backend.compute_stream(), own); },
      [&] { backend.matrix().multiply(backend.compute_stream(), library); }, &backend);
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  Json row = Json::object();
  row.set("form", text(p.transpose_a ? "T" : "N", p.transpose_b ? "T" : "N", symmetric ? " symmetric" : ""));
  row.set("dtype", name_of(dtype));
  row.set("m", p.m);
  row.set("n", p.n);
  row.set("k", p.k);
  row.set("multiply_gflops", flops / result.b_seconds / 1e9);
  row.set("batched_product_milliseconds", result.a_seconds * 1e3);
  row.set("time_ratio", result.ratio.median);
  row.set("lower_quartile", result.ratio.lower_quartile);
  row.set("upper_quartile", result.ratio.upper_quartile);
  return row;
}

const std::vector<Product>& full_products() {
  static const std::vector<Product> all = {{128, 128, 128, false, false},    {384, 384, 384, false, false},  {768, 768, 768, false, false},
                                           {1024, 1024, 1024, false, false}, {384, 1536, 384, false, false}, {768, 3072, 768, false, false},
                                           {768, 768, 768, true, false},     {1024, 3072, 768, false, true}, {1024, 768, 3072, false, true},
                                           {768, 3072, 1024, true, false}};
  return all;
}
const std::vector<Product>& symmetric_products() {
  static const std::vector<Product> all = {{128, 128, 128, false, true},   {384, 384, 384, false, true},  {384, 384, 1536, false, true},
                                           {768, 768, 768, false, true},   {768, 768, 3072, false, true}, {768, 768, 3072, true, false},
                                           {1024, 1024, 1024, false, true}};
  return all;
}

Json::Array run(const Arguments& arguments) {
  const auto backend = make_backend(arguments);
  const DeviceUpdates* device = device_updates(*backend);
  std::vector<Product> full = full_products(), symmetric = symmetric_products();
  if (arguments.own.contains("small")) full = {{48, 40, 33, false, true}}, symmetric = {{40, 40, 33, false, true}};
  std::vector<DType> dtypes{DType::float32};
  if (device) {
    dtypes.push_back(device->product_dtype());
    if (!arguments.own.contains("small"))
      for (int64_t n : {2048, 4096, 8192}) full.push_back({n, n, n, false, true}), symmetric.push_back({n, n, n, false, true});
  }
  Json::Array rows;
  for (const DType dtype : dtypes) {
    for (const Product& p : full) rows.push_back(row_of(arguments, *backend, p, false, dtype));
    for (const Product& p : symmetric) rows.push_back(row_of(arguments, *backend, p, true, dtype));
  }
  return rows;
}

}  // namespace

Benchmark gemm_benchmark() {
  return {"gemm",
          "batched_product against multiply (oneDNN where built in), full and symmetric: time_ratio = own / multiply",
          {device_option, small_option},
          run};
}

}  // namespace dmuon::bench
