// Matrix products: our own against the library's on the shapes of training and of Newton-Schulz, full and symmetric.
#include "dmuon/core/text.h"
#include "support.h"

namespace dmuon::bench {
namespace {

struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};

Json row_of(const Arguments& arguments, Backend& backend, const Product& p, bool symmetric) {
  const Tensor a = random_tensor(backend, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k});
  const Tensor b = symmetric ? a : random_tensor(backend, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
  const Tensor c = random_tensor(backend, {p.m, p.n}), d = random_tensor(backend, {p.m, p.n});
  Multiply library;
  library.a = a, library.b = b, library.c = c, library.transpose_a = p.transpose_a, library.transpose_b = p.transpose_b;
  BatchedProduct own;
  own.a = {a}, own.b = {b}, own.d = {d}, own.transpose_a = p.transpose_a, own.transpose_b = p.transpose_b, own.symmetric = symmetric;
  const Comparison result = compare(
      arguments, [&] { backend.matrix().batched_product(backend.compute_stream(), own); },
      [&] { backend.matrix().multiply(backend.compute_stream(), library); });
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  Json row = Json::object();
  row.set("form", text(p.transpose_a ? "T" : "N", p.transpose_b ? "T" : "N", symmetric ? " symmetric" : ""));
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

Json::Array run(const Arguments& arguments) {
  const auto backend = make_backend(arguments);
  Json::Array rows;
  for (const Product& p : std::vector<Product>{{128, 128, 128, false, false},
                                               {384, 384, 384, false, false},
                                               {768, 768, 768, false, false},
                                               {1024, 1024, 1024, false, false},
                                               {384, 1536, 384, false, false},
                                               {768, 3072, 768, false, false},
                                               {768, 768, 768, true, false},
                                               {1024, 3072, 768, false, true},
                                               {1024, 768, 3072, false, true},
                                               {768, 3072, 1024, true, false}})
    rows.push_back(row_of(arguments, *backend, p, false));
  for (const Product& p : std::vector<Product>{{128, 128, 128, false, true},
                                               {384, 384, 384, false, true},
                                               {384, 384, 1536, false, true},
                                               {768, 768, 768, false, true},
                                               {768, 768, 3072, false, true},
                                               {768, 768, 3072, true, false},
                                               {1024, 1024, 1024, false, true}})
    rows.push_back(row_of(arguments, *backend, p, true));
  return rows;
}

}  // namespace

Benchmark gemm_benchmark() {
  return {"gemm", "batched_product against multiply (oneDNN where built in), full and symmetric: time_ratio = own / multiply", {}, run};
}

}  // namespace dmuon::bench
