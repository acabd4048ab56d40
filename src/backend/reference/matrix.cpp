#include "backend/kernel_flops.h"
#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

// Element (row, column) of op(matrix), where the stored matrix is row-major and op may transpose.
template <class T>
struct Operand {
  Operand(const Tensor& tensor, bool t) : data(tensor.data<T>()), columns(tensor.size(-1)), transposed(t) {}
  double operator()(int64_t row, int64_t column) const { return transposed ? data[column * columns + row] : data[row * columns + column]; }

  const T* data;
  int64_t columns;
  bool transposed;
};

template <class T>
double dot(const Operand<T>& a, const Operand<T>& b, int64_t row, int64_t column, int64_t inner) {
  double sum = 0;
  for (int64_t k = 0; k < inner; ++k) sum += a(row, k) * b(k, column);
  return sum;
}

int64_t inner_size(const Tensor& a, bool transposed) { return transposed ? a.rows() : a.size(-1); }

template <class T, class Result>
void multiply_into(const Multiply& m) {
  const Operand<T> a(m.a, m.transpose_a), b(m.b, m.transpose_b);
  const T* bias = optional_data<T>(m.bias);
  Result* c = m.c.data<Result>();
  const int64_t rows = m.c.rows(), columns = m.c.size(-1), inner = inner_size(m.a, m.transpose_a);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double value = m.alpha * dot(a, b, i, j, inner);
      if (m.beta != 0.0) value += m.beta * c[i * columns + j];
      if (bias) value += bias[j];
      c[i * columns + j] = static_cast<Result>(value);
    }
}

}  // namespace

void Matrix::multiply(Stream& stream, const Multiply& m) {
  host_.launch(stream, "multiply", flops_of(m), {m.a, m.b, m.c, m.bias}, [m] {
    with_model_type(m.a, [&](auto zero) {
      using T = decltype(zero);
      if (m.c.dtype() == m.a.dtype())
        multiply_into<T, T>(m);
      else
        multiply_into<T, Wide<T>>(m);
    });
  });
}

void Matrix::batched_product(Stream& stream, const BatchedProduct& p) {
  std::vector<Tensor> touched = p.d;
  for (const auto* operands : {&p.a, &p.b, &p.c}) touched.insert(touched.end(), operands->begin(), operands->end());
  host_.launch(stream, "batched_product", flops_of(p), std::move(touched), [p] {
    for (size_t index = 0; index < p.d.size(); ++index)
      with_type(p.d[index], [&](auto zero) {
        using T = decltype(zero);
        const Operand<T> a(p.a[index], p.transpose_a), b(p.b[index], p.transpose_b);
        const T* c = p.beta != 0.0 ? p.c[index].template data<T>() : nullptr;
        T* d = p.d[index].template data<T>();
        const double alpha = p.alphas.empty() ? p.alpha : p.alphas[index];
        const int64_t rows = p.d[index].rows(), columns = p.d[index].size(-1), inner = inner_size(p.a[index], p.transpose_a);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < (p.symmetric ? i + 1 : columns); ++j) {
            double value = alpha * dot(a, b, i, j, inner);
            if (c) value += p.beta * c[i * columns + j];
            if (i == j) value += p.diagonal;
            d[i * columns + j] = static_cast<T>(value);
            if (p.symmetric) d[j * columns + i] = d[i * columns + j];
          }
      });
  });
}

void Matrix::column_sum(Stream& stream, const ColumnSum& s) {
  host_.launch(stream, "column_sum", 0, {s.in, s.out}, [s] {
    with_model_type(s.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = s.in.data<T>();
      const int64_t columns = s.in.size(-1);
      std::vector<double> sums(static_cast<size_t>(columns), 0.0);
      for (int64_t i = 0; i < s.in.rows(); ++i)
        for (int64_t j = 0; j < columns; ++j) sums[static_cast<size_t>(j)] += in[i * columns + j];
      store_sums<Wide<T>>(sums, s.out, s.accumulate);
    });
  });
}

}  // namespace dmuon::reference
