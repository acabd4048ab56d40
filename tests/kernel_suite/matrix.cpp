#include <array>

#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

Shape oriented(int64_t rows, int64_t columns, bool transposed) { return transposed ? Shape{columns, rows} : Shape{rows, columns}; }

struct Scaling {
  double alpha, beta;
  bool bias;
};

// `wide`: c is float32 whatever a and b are, as for the gradient of a weight.
void multiply(Comparison& compare, int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, const Scaling& scaling,
              bool wide = false) {
  compare.start(text("multiply, ", m, "x", n, "x", k, transpose_a ? " a^T" : " a", transpose_b ? " b^T" : " b", " alpha ", scaling.alpha,
                     " beta ", scaling.beta, scaling.bias ? " bias" : "", wide ? " wide" : ""));
  const Twin a = compare.normal(oriented(m, k, transpose_a)), b = compare.normal(oriented(k, n, transpose_b));
  const Twin c = wide ? compare.wide_sum_output({m, n}, scaling.beta != 0) : compare.sum_output({m, n}, scaling.beta != 0);
  const Twin bias = scaling.bias ? compare.normal({n}) : Twin{};
  compare.on_both([&](Backend& backend, auto pick) {
    Multiply arguments;
    arguments.a = pick(a);
    arguments.b = pick(b);
    arguments.c = pick(c);
    arguments.bias = pick(bias);
    arguments.transpose_a = transpose_a;
    arguments.transpose_b = transpose_b;
    arguments.alpha = scaling.alpha;
    arguments.beta = scaling.beta;
    backend.matrix().multiply(backend.compute_stream(), arguments);
  });
  compare.check("c", c, {.reduction = static_cast<double>(k)});
}

struct Product {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  size_t batch = 1;
  double beta = 0, diagonal = 0;
  bool own_alphas = false, alias = false, symmetric = false;
};

// Twins of one side's handles.
template <class Pick>
std::vector<Tensor> pick_all(const std::vector<Twin>& twins, const Pick& pick) {
  std::vector<Tensor> tensors;
  for (const Twin& twin : twins) tensors.push_back(pick(twin));
  return tensors;
}

// A symmetric product is x op(x), with a symmetric c.
Twin symmetric_input(Comparison& compare, int64_t m) {
  const Twin x = compare.normal({m, m});
  std::vector<double> values = to_doubles(compare.tested(), x.tested);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < i; ++j) values[static_cast<size_t>(j * m + i)] = values[static_cast<size_t>(i * m + j)];
  return compare.values({m, m}, values);
}

void batched_product(Comparison& compare, const Product& p) {
  compare.start(text("batched_product, ", p.batch, " of ", p.m, "x", p.n, "x", p.k, p.transpose_a ? " a^T" : " a",
                     p.transpose_b ? " b^T" : " b", " beta ", p.beta, " diagonal ", p.diagonal, p.own_alphas ? " alphas" : "",
                     p.alias ? " in place" : "", p.symmetric ? " symmetric" : ""));
  std::vector<Twin> a, b, c, d;
  for (size_t i = 0; i < p.batch; ++i) {
    a.push_back(compare.normal(oriented(p.m, p.k, p.transpose_a)));
    b.push_back(p.symmetric ? a.back() : compare.normal(oriented(p.k, p.n, p.transpose_b)));
    if (p.beta != 0) c.push_back(p.symmetric ? symmetric_input(compare, p.m) : compare.normal({p.m, p.n}));
    d.push_back(p.alias ? c.back() : compare.output({p.m, p.n}));
  }
  const auto arguments_of = [&](auto pick) {
    BatchedProduct arguments;
    arguments.a = pick_all(a, pick);
    arguments.b = pick_all(b, pick);
    arguments.c = pick_all(c, pick);
    arguments.d = pick_all(d, pick);
    arguments.transpose_a = p.transpose_a;
    arguments.transpose_b = p.transpose_b;
    arguments.alpha = -0.75;
    for (size_t i = 0; p.own_alphas && i < p.batch; ++i) arguments.alphas.push_back(0.5 + static_cast<double>(i));
    arguments.beta = p.beta;
    arguments.diagonal = p.diagonal;
    arguments.symmetric = p.symmetric;
    return arguments;
  };
  // The same matrices one by one: equal bits for any batch composition.
  std::vector<Tensor> alone;
  for (size_t i = 0; i < p.batch; ++i) {
    BatchedProduct single = arguments_of([](const Twin& twin) { return twin.tested; });
    alone.push_back(compare.output({p.m, p.n}).tested);
    single.a = {single.a[i]};
    single.b = {single.b[i]};
    if (!single.c.empty()) single.c = {single.c[i]};
    if (!single.alphas.empty()) single.alphas = {single.alphas[i]};
    single.d = {alone.back()};
    compare.tested().matrix().batched_product(compare.tested().compute_stream(), single);
  }
  compare.on_both([&](Backend& backend, auto pick) { backend.matrix().batched_product(backend.compute_stream(), arguments_of(pick)); });
  for (size_t i = 0; i < p.batch; ++i) {
    compare.check(text("d", i).c_str(), d[i], {.reduction = static_cast<double>(p.k), .magnitude = std::abs(p.diagonal)});
    compare.check_same_bits("in a batch and alone", d[i].tested, alone[i]);
    if (!p.symmetric) continue;
    std::vector<double> values = to_doubles(compare.tested(), d[i].tested), mirrored(values);
    for (int64_t r = 0; r < p.m; ++r)
      for (int64_t s = 0; s < p.m; ++s) mirrored[static_cast<size_t>(s * p.m + r)] = values[static_cast<size_t>(r * p.m + s)];
    compare.check_same_bits("mirrored", d[i].tested, compare.values({p.m, p.m}, mirrored).tested);
  }
}

void column_sum(Comparison& compare, int64_t rows, int64_t columns, bool accumulate) {
  compare.start(text("column_sum, ", rows, "x", columns, accumulate ? " accumulate" : ""));
  const Twin in = compare.normal({rows, columns}), out = compare.wide_sum_output({columns}, accumulate);
  compare.on_both([&](Backend& backend, auto pick) {
    ColumnSum arguments;
    arguments.in = pick(in);
    arguments.out = pick(out);
    arguments.accumulate = accumulate;
    backend.matrix().column_sum(backend.compute_stream(), arguments);
  });
  compare.check("out", out, {.reduction = static_cast<double>(rows)});
}

void every_size(Comparison& compare) {
  const Scaling plain{1.0, 0.0, false}, biased{1.0, 0.0, true}, added{1.0, 1.0, false}, mixed{0.5, -0.25, true};
  for (int64_t m : {1, 3, 17, 65})
    for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {7, 36}, {36, 7}, {52, 65}, {65, 52}, {65, 1600}, {1600, 7}})
      for (bool transpose_a : {false, true})
        for (bool transpose_b : {false, true}) {
          multiply(compare, m, n, k, transpose_a, transpose_b, plain);
          multiply(compare, m, n, k, transpose_a, transpose_b, mixed);
        }
  for (int64_t m : {2, 4, 5, 6, 7, 8, 9})  // as many rows as texts are decoded together
    for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 3}, {37, 65}, {300, 129}})
      for (const Scaling& scaling : {plain, biased, added, mixed}) multiply(compare, m, n, k, false, true, scaling);
  for (const Scaling& scaling : {plain, biased, added}) {
    multiply(compare, 129, 97, 257, false, true, scaling);
    multiply(compare, 129, 257, 97, false, false, scaling);
    multiply(compare, 97, 257, 129, true, false, scaling);
  }

  for (size_t batch : {size_t{1}, size_t{3}})
    for (auto [m, k] : {std::pair<int64_t, int64_t>{1, 1}, {1, 52}, {7, 1}, {7, 1600}, {36, 65}, {52, 36}, {65, 52}, {129, 200}}) {
      batched_product(compare, {.m = m, .n = m, .k = k, .transpose_b = true, .batch = batch, .symmetric = true});
      batched_product(compare, {.m = m, .n = m, .k = k, .transpose_a = true, .batch = batch, .diagonal = 1.5, .symmetric = true});
      batched_product(compare,
                      {.m = m, .n = m, .k = k, .transpose_b = true, .batch = batch, .beta = 2, .own_alphas = true, .symmetric = true});
      batched_product(compare,
                      {.m = m, .n = m, .k = k, .transpose_b = true, .batch = batch, .beta = 0.5, .alias = true, .symmetric = true});
      for (bool transpose_a : {false, true})
        for (bool transpose_b : {false, true}) {
          const Product base{.m = m, .n = k, .k = m + 1, .transpose_a = transpose_a, .transpose_b = transpose_b, .batch = batch};
          batched_product(compare, base);
          Product full = base;
          full.beta = 0.5;
          full.diagonal = -2;
          full.own_alphas = true;
          batched_product(compare, full);
          full.alias = true;
          batched_product(compare, full);
        }
    }

  for (int64_t rows : {1, 3, 17, 300})
    for (int64_t columns : {1, 7, 36, 52, 65, 1600})
      for (bool accumulate : {false, true}) column_sum(compare, rows, columns, accumulate);
}

// Products of a model in its dtype, and of Newton-Schulz: in float16 the latter only.
void some_sizes(Comparison& compare, DType compute) {
  const Scaling plain{1.0, 0.0, false}, mixed{0.5, -0.25, true};
  if (compute != DType::float16)
    for (auto [m, n, k] : {std::array<int64_t, 3>{3, 7, 5}, {17, 65, 36}, {64, 40, 72}}) {
      for (bool transpose_a : {false, true})
        for (bool transpose_b : {false, true}) {
          multiply(compare, m, n, k, transpose_a, transpose_b, plain);
          multiply(compare, m, n, k, transpose_a, transpose_b, mixed);
        }
      multiply(compare, m, n, k, true, false, {1.0, 0.0, false}, true);
      multiply(compare, m, n, k, true, false, {1.0, 1.0, false}, true);
      for (bool accumulate : {false, true}) column_sum(compare, m, n, accumulate);
    }
  if (compute == DType::bfloat16) return;
  for (auto [m, k] : {std::pair<int64_t, int64_t>{1, 1}, {7, 36}, {40, 72}, {65, 52}}) {
    batched_product(compare, {.m = m, .n = m, .k = k, .transpose_b = true, .batch = 3, .symmetric = true});
    batched_product(
        compare, {.m = m, .n = m, .k = k, .transpose_a = true, .batch = 2, .beta = 0.5, .diagonal = 1.5, .alias = true, .symmetric = true});
    for (bool transpose_a : {false, true})
      for (bool transpose_b : {false, true})
        batched_product(compare, {.m = m,
                                  .n = k,
                                  .k = m + 1,
                                  .transpose_a = transpose_a,
                                  .transpose_b = transpose_b,
                                  .batch = 2,
                                  .beta = 0.5,
                                  .diagonal = -2,
                                  .own_alphas = true});
  }
}

}  // namespace

OutputBits compare_matrix_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  Comparison compare(tested, reference, precision);
  if (precision.thorough())
    every_size(compare);
  else
    some_sizes(compare, precision.compute);
  return std::move(compare).bits();
}

}  // namespace kernel_suite
