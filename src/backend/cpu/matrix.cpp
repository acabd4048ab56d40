#include <cmath>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/kernel_flops.h"

namespace dmuon::cpu {
namespace {

struct ProductShape {
  ProductShape(const Tensor& a, bool transpose_a, const Tensor& out)
      : m(out.rows()), n(out.size(-1)), k(transpose_a ? a.rows() : a.size(-1)) {}
  int64_t m, n, k;
};

// Cuts one product into `pieces` of about equal work. Any cut gives the same bits (simd/gemm.h).
void cut(const simd::Table& simd, const simd::GemmTask& whole, int64_t pieces, std::vector<simd::GemmTask>& out) {
  const auto boundary = [](double fraction, int64_t size, int64_t multiple) {
    const auto at = static_cast<int64_t>(std::llround(fraction * static_cast<double>(size) / static_cast<double>(multiple))) * multiple;
    return std::min(at, size);
  };
  // Symmetric: strips of rows of equal area below the diagonal. Otherwise a grid of pieces as square as may be.
  int64_t down = pieces;
  if (!whole.symmetric) {
    double best = 0;
    for (int64_t rows = 1; rows <= pieces; ++rows) {
      if (pieces % rows != 0) continue;
      const double height = static_cast<double>(whole.m) / static_cast<double>(rows);
      const double width = static_cast<double>(whole.n) / static_cast<double>(pieces / rows);
      const double squareness = std::min(height / width, width / height);
      if (squareness > best) best = squareness, down = rows;
    }
  }
  const int64_t across = pieces / down;
  // Symmetric: a block on the diagonal stays in one piece.
  const int64_t row_multiple = whole.symmetric ? simd.tile_columns : simd.tile_rows;
  for (int64_t i = 0; i < down; ++i)
    for (int64_t j = 0; j < across; ++j) {
      simd::GemmTask piece = whole;
      const double top = static_cast<double>(i) / static_cast<double>(down),
                   bottom = static_cast<double>(i + 1) / static_cast<double>(down);
      piece.row_begin = boundary(whole.symmetric ? std::sqrt(top) : top, whole.m, row_multiple);
      piece.row_end = boundary(whole.symmetric ? std::sqrt(bottom) : bottom, whole.m, row_multiple);
      if (i + 1 == down) piece.row_end = whole.m;
      piece.column_begin = boundary(static_cast<double>(j) / static_cast<double>(across), whole.n, simd.tile_columns);
      piece.column_end = boundary(static_cast<double>(j + 1) / static_cast<double>(across), whole.n, simd.tile_columns);
      if (j + 1 == across) piece.column_end = whole.n;
      out.push_back(piece);
    }
}

int64_t workspace_floats(const simd::Table& simd, const ProductShape& shape) {
  return simd.gemm_workspace_floats(shape.m, shape.n, shape.k);
}

// Runs products of any shapes; `workspace` has `floats_per_part` for every part of the team. Small matrices stay whole and
// go to the parts in contiguous runs; large ones are cut so that every part gets the same number of pieces.
void run_products(const simd::Table& simd, const Team& team, const std::vector<simd::GemmTask>& products, float* workspace,
                  int64_t floats_per_part) {
  const auto count = static_cast<int64_t>(products.size());
  const int64_t pieces = team.parts / std::gcd(count, static_cast<int64_t>(team.parts));
  std::vector<simd::GemmTask> tasks;
  double flops = 0;
  for (const simd::GemmTask& product : products) {
    const double here = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
    flops += here;
    cut(simd, product, here < 1e6 ? 1 : pieces, tasks);
  }
  const auto all = static_cast<int64_t>(tasks.size());
  team.split(all, 1, flops < 1e6 ? all + 1 : 0, [&](int part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      simd::GemmTask& task = tasks[static_cast<size_t>(i)];
      if (task.row_begin == task.row_end || task.column_begin == task.column_end) continue;
      task.workspace = workspace + part * floats_per_part;
      simd.gemm(task);
    }
  });
}

// Product i of a batch, whole.
simd::GemmTask task_of(const BatchedProduct& p, size_t i) {
  const ProductShape shape(p.a[i], p.transpose_a, p.d[i]);
  simd::GemmTask task;
  task.m = shape.m, task.n = shape.n, task.k = shape.k;
  task.a = p.a[i].data<float>(), task.b = p.b[i].data<float>(), task.d = p.d[i].data<float>();
  task.c = p.beta != 0.0 ? p.c[i].data<float>() : nullptr;
  task.a_stride = p.a[i].size(-1), task.b_stride = p.b[i].size(-1), task.d_stride = shape.n;
  task.transpose_a = p.transpose_a, task.transpose_b = p.transpose_b;
  task.alpha = static_cast<float>(p.alphas.empty() ? p.alpha : p.alphas[i]), task.beta = static_cast<float>(p.beta);
  task.diagonal = static_cast<float>(p.diagonal);
  task.symmetric = p.symmetric;
  return task;
}

// What every thread needs to run any product of the batch.
int64_t workspace_floats(const simd::Table& simd, const BatchedProduct& p) {
  int64_t floats = 0;
  for (size_t i = 0; i < p.d.size(); ++i) floats = std::max(floats, workspace_floats(simd, ProductShape(p.a[i], p.transpose_a, p.d[i])));
  return floats;
}

void add_tensors(const BatchedProduct& p, std::vector<Tensor>& tensors) {
  for (const auto* operands : {&p.a, &p.b, &p.c, &p.d}) tensors.insert(tensors.end(), operands->begin(), operands->end());
}

// c = beta c + bias, for a library that only adds to c.
void start_with_bias(const simd::Table& simd, const Team& team, const Multiply& m) {
  const int64_t columns = m.c.size(-1);
  team.split(m.c.rows(), 1, 16384 / columns, [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* c = m.c.data<float>() + row * columns;
      if (m.beta != 0.0) simd.scaled_add(c, c, static_cast<float>(m.beta), false, 0, columns);
      simd.scaled_add(m.bias.data<float>(), c, 1.0f, m.beta != 0.0, 0, columns);
    }
  });
}

}  // namespace

// Rows of the weight are split between the threads.
void Matrix::multiply_few_rows(Stream& stream, const Multiply& m) {
  const ProductShape shape(m.a, false, m.c);
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "multiply", flops_of(m), {m.a, m.b, m.c, m.bias}, [=, &simd] {
    if (shape.m == 0 || shape.n == 0) return;
    simd::FewRowsTask task;
    task.m = shape.m, task.n = shape.n, task.k = shape.k;
    task.x = m.a.data<float>(), task.w = m.b.data<float>(), task.y = m.c.data<float>(), task.bias = optional_data(m.bias);
    task.alpha = static_cast<float>(m.alpha), task.beta = static_cast<float>(m.beta);
    const int64_t worthwhile = 32768 / std::max<int64_t>(1, shape.k);
    team.split(shape.n, 8, worthwhile, [&](int, int64_t begin, int64_t end) { simd.few_rows_product(task, begin, end); });
  });
}

void Matrix::multiply(Stream& stream, const Multiply& m) {
  const ProductShape shape(m.a, m.transpose_a, m.c);
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  if (shape.m <= simd::FewRowsTask::most_rows && !m.transpose_a && m.transpose_b) return multiply_few_rows(stream, m);
  LibraryGemm* library = shape.k > 0 ? backend_.library_gemm() : nullptr;
  const int64_t floats = library ? 0 : workspace_floats(simd, shape);
  const Tensor workspace = backend_.workspace(floats * team.parts, "packed panels of a product");
  backend_.launch(stream, "multiply", flops_of(m), {m.a, m.b, m.c, m.bias, workspace}, [=, &simd] {
    if (shape.m == 0 || shape.n == 0) return;
    if (library) {
      if (m.bias.defined()) start_with_bias(simd, team, m);
      library->multiply({.m = shape.m,
                         .n = shape.n,
                         .k = shape.k,
                         .a = m.a.data<float>(),
                         .b = m.b.data<float>(),
                         .c = m.c.data<float>(),
                         .transpose_a = m.transpose_a,
                         .transpose_b = m.transpose_b,
                         .alpha = static_cast<float>(m.alpha),
                         .beta = m.bias.defined() ? 1.0f : static_cast<float>(m.beta)},
                        team.threaded ? team.parts : 1);
      return;
    }
    simd::GemmTask task;
    task.m = shape.m, task.n = shape.n, task.k = shape.k;
    task.a = m.a.data<float>(), task.b = m.b.data<float>(), task.c = task.d = m.c.data<float>();
    task.a_stride = m.a.size(-1), task.b_stride = m.b.size(-1), task.d_stride = shape.n;
    task.transpose_a = m.transpose_a, task.transpose_b = m.transpose_b;
    task.alpha = static_cast<float>(m.alpha), task.beta = static_cast<float>(m.beta);
    task.bias = optional_data(m.bias);
    run_products(simd, team, {task}, workspace.data<float>(), floats);
  });
}

void Matrix::batched_product(Stream& stream, const BatchedProduct& p) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const int64_t floats = workspace_floats(simd, p);
  const Tensor workspace = backend_.workspace(floats * team.parts, "packed panels of a batch of products");
  std::vector<Tensor> touched = {workspace};
  add_tensors(p, touched);
  backend_.launch(stream, "batched_product", flops_of(p), std::move(touched), [=, &simd] {
    std::vector<simd::GemmTask> products;
    for (size_t i = 0; i < p.d.size(); ++i)
      if (p.d[i].elements() > 0) products.push_back(task_of(p, i));
    if (!products.empty()) run_products(simd, team, products, workspace.data<float>(), floats);
  });
}

void Matrix::product_sequence(Stream& stream, const ProductSequence& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const auto count = static_cast<int64_t>(s.steps.empty() ? 0 : s.steps.front().d.size());
  int64_t floats = 0;
  double flops = 0;
  std::vector<Tensor> touched;
  for (const BatchedProduct& step : s.steps) {
    floats = std::max(floats, workspace_floats(simd, step));
    flops += flops_of(step);
    add_tensors(step, touched);
  }
  const Tensor workspace = backend_.workspace(floats * team.parts, "packed panels of a sequence of products");
  touched.push_back(workspace);
  backend_.launch(stream, "product_sequence", flops, std::move(touched), [=, &simd] {
    if (s.queues == 1) {
      for (int64_t i = 0; i < count; ++i)
        for (const BatchedProduct& step : s.steps)
          if (step.d[static_cast<size_t>(i)].elements() > 0)
            run_products(simd, team, {task_of(step, static_cast<size_t>(i))}, workspace.data<float>(), floats);
      return;
    }
    team.split(s.queues, 1, 0, [&](int part, int64_t begin, int64_t end) {
      for (int64_t queue = begin; queue < end; ++queue)
        for (int64_t i = queue; i < count; i += s.queues)
          for (const BatchedProduct& step : s.steps) {
            simd::GemmTask task = task_of(step, static_cast<size_t>(i));
            if (task.m == 0 || task.n == 0) continue;
            task.row_end = task.m, task.column_end = task.n;
            task.workspace = workspace.data<float>() + part * floats;
            simd.gemm(task);
          }
    });
  });
}

void Matrix::column_sum(Stream& stream, const ColumnSum& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const RowBlocks blocks(s.in.rows());
  const int64_t columns = s.in.size(-1);
  const Tensor partials = backend_.workspace(blocks.count * columns, "partial column sums");
  backend_.launch(stream, "column_sum", 0, {s.in, s.out, partials}, [=, &simd] {
    if (columns == 0) return;
    float* sums = partials.data<float>();
    team.split(blocks.count, 1, s.in.elements() < 16384 ? blocks.count + 1 : 0, [&](int, int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        simd.column_sum(s.in.data<float>(), columns, blocks.begin(b), blocks.end(b), sums + b * columns);
    });
    add_partials(simd, team, sums, blocks.count, s.accumulate, s.out);
  });
}

}  // namespace dmuon::cpu
