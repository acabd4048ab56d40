// Symmetric products against full ones of the library: the lower triangle costs half the operations, so 0.5 is the floor of
// the time ratio. Square ones as in the polynomial of Newton-Schulz, long ones as in X X^T, and a batch of small ones.
#include <algorithm>
#include <thread>

#include "dmuon/core/text.h"
#include "fma_peak.h"
#include "support.h"

namespace dmuon::bench {
namespace {

enum class Form { square, times_transposed, transposed_times };  // R R, X X^T, X^T X

struct Case {
  Form form;
  int64_t n, k;
  size_t batch = 1;
};

const char* name_of(Form form) { return form == Form::square ? "R R" : form == Form::times_transposed ? "X X^T" : "X^T X"; }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{Form::square, 128, 128},
                                        {Form::square, 256, 256},
                                        {Form::square, 384, 384},
                                        {Form::square, 768, 768},
                                        {Form::square, 1024, 1024},
                                        {Form::square, 1536, 1536},
                                        {Form::square, 2048, 2048},
                                        {Form::times_transposed, 384, 1536},
                                        {Form::times_transposed, 768, 3072},
                                        {Form::times_transposed, 1024, 4096},
                                        {Form::transposed_times, 768, 3072},
                                        {Form::transposed_times, 1024, 4096},
                                        {Form::square, 128, 128, 32},
                                        {Form::times_transposed, 128, 128, 32}};
  return all;
}

// A random matrix; symmetric where it stands for R.
Tensor operand(Backend& backend, const Case& c) {
  if (c.form != Form::square) return random_tensor(backend, c.form == Form::times_transposed ? Shape{c.n, c.k} : Shape{c.k, c.n});
  const Tensor tensor = random_tensor(backend, {c.n, c.n});
  std::vector<double> values = to_doubles(backend, tensor);
  for (int64_t i = 0; i < c.n; ++i)
    for (int64_t j = 0; j < i; ++j) values[static_cast<size_t>(j * c.n + i)] = values[static_cast<size_t>(i * c.n + j)];
  from_doubles(backend, values, tensor);
  return tensor;
}

// `alone`: a backend of one thread, because the library loses to itself on small products with several; null with one thread.
Json row_of(const Arguments& arguments, Backend& backend, Backend* alone, const Case& c, double peak) {
  BatchedProduct own;
  std::vector<Multiply> library;
  for (size_t i = 0; i < c.batch; ++i) {
    own.a.push_back(operand(backend, c));
    own.d.push_back(random_tensor(backend, {c.n, c.n}));
    Multiply multiply;
    multiply.a = multiply.b = own.a.back();
    multiply.c = random_tensor(backend, {c.n, c.n});
    multiply.transpose_a = own.transpose_a = c.form == Form::transposed_times;
    multiply.transpose_b = own.transpose_b = c.form == Form::times_transposed;
    library.push_back(multiply);
  }
  own.b = own.a;
  own.symmetric = true;
  const auto against = [&](Backend& other) {
    return compare(
        arguments, [&] { backend.matrix().batched_product(backend.compute_stream(), own); },
        [&] {
          for (const Multiply& multiply : library) other.matrix().multiply(other.compute_stream(), multiply);
        });
  };
  Comparison result = against(backend);
  if (alone != nullptr)
    if (const Comparison single = against(*alone); single.ratio.median > result.ratio.median) result = single;
  const auto n = static_cast<double>(c.n), k = static_cast<double>(c.k), batch = static_cast<double>(c.batch);
  const double gflops = batch * k * n * (n + 1) / result.a_seconds / 1e9;
  Json row = Json::object();
  row.set("form", name_of(c.form));
  row.set("batch", static_cast<int64_t>(c.batch));
  row.set("n", c.n);
  row.set("k", c.k);
  row.set("threads", arguments.threads);
  row.set("milliseconds", result.a_seconds * 1e3);
  row.set("gflops", gflops);
  row.set("share_of_fma_peak", gflops / peak);
  row.set("library_gflops", batch * 2 * n * n * k / result.b_seconds / 1e9);
  row.set("time_ratio", result.ratio.median);
  row.set("lower_quartile", result.ratio.lower_quartile);
  row.set("upper_quartile", result.ratio.upper_quartile);
  return row;
}

Json::Array run(const Arguments& arguments) {
  Json::Array rows;
  const int most = std::max(arguments.threads, static_cast<int>(std::min(2u, std::thread::hardware_concurrency())));
  for (int threads = 1; threads <= most; ++threads) {
    Arguments here = arguments;
    here.threads = threads;
    const auto backend = make_backend(here);
    const double peak = fma_peak_gflops(backend->information().instruction_set, threads);
    Arguments single = arguments;
    single.threads = 1;
    const auto alone = threads > 1 ? make_backend(single) : nullptr;
    for (const Case& c : cases()) rows.push_back(row_of(here, *backend, alone.get(), c, peak));
  }
  return rows;
}

}  // namespace

Benchmark symmetric_product_benchmark() {
  return {"symmetric-product",
          "lower triangle and mirror against full products (oneDNN where built in), on 1 thread and on 2 (or up to --threads): "
          "time_ratio = symmetric / full (the better of the library on one thread and on all), operations of the triangle only in gflops",
          {},
          run};
}

}  // namespace dmuon::bench
