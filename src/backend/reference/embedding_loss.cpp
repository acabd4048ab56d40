#include <algorithm>
#include <cmath>

#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

// table[indices[n]] += factor * d_output[n], summed in double; an undefined table is skipped.
template <class T>
void scatter_add(const Tensor& indices, const Tensor& d_output, const DropoutFactor& factor, const Tensor& d_table, bool accumulate) {
  if (!d_table.defined()) return;
  const int64_t columns = d_output.size(-1);
  const T* gradient = d_output.data<T>();
  const int32_t* index = indices.data<int32_t>();
  std::vector<double> sums(static_cast<size_t>(d_table.elements()), 0.0);
  for (int64_t n = 0; n < d_output.rows(); ++n)
    for (int64_t j = 0; j < columns; ++j)
      sums[static_cast<size_t>(index[n] * columns + j)] += factor(n * columns + j) * gradient[n * columns + j];
  store_sums<Wide<T>>(sums, d_table, accumulate);
}

}  // namespace

void EmbeddingLoss::embedding_forward(Stream& stream, const EmbeddingForward& f) {
  host_.launch(stream, "embedding_forward", 0, {f.tokens, f.positions, f.token_table, f.position_table, f.output}, [f] {
    with_model_type(f.output, [&](auto zero) {
      using T = decltype(zero);
      const int64_t columns = f.output.size(-1);
      const int32_t* tokens = f.tokens.data<int32_t>();
      const int32_t* positions = f.position_table.defined() ? f.positions.data<int32_t>() : nullptr;
      const T* token_table = f.token_table.data<T>();
      const T* position_table = optional_data<T>(f.position_table);
      T* output = f.output.data<T>();
      const DropoutFactor factor(f.dropout, f.output.elements());
      for (int64_t n = 0; n < f.output.rows(); ++n)
        for (int64_t j = 0; j < columns; ++j) {
          double value = token_table[tokens[n] * columns + j];
          if (position_table) value += position_table[positions[n] * columns + j];
          output[n * columns + j] = static_cast<T>(factor(n * columns + j) * value);
        }
    });
  });
}

void EmbeddingLoss::embedding_backward(Stream& stream, const EmbeddingBackward& a) {
  host_.launch(stream, "embedding_backward", 0, {a.tokens, a.positions, a.d_output, a.d_token_table, a.d_position_table}, [a] {
    with_model_type(a.d_output, [&](auto zero) {
      using T = decltype(zero);
      const DropoutFactor factor(a.dropout, a.d_output.elements());
      scatter_add<T>(a.tokens, a.d_output, factor, a.d_token_table, a.accumulate_token_table);
      scatter_add<T>(a.positions, a.d_output, factor, a.d_position_table, a.accumulate_position_table);
    });
  });
}

void EmbeddingLoss::softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& x) {
  host_.launch(stream, "softmax_cross_entropy", 0, {x.logits, x.targets, x.losses}, [x] {
    with_model_type(x.logits, [&](auto zero) {
      using T = decltype(zero);
      const int64_t columns = x.logits.size(-1);
      for (int64_t n = 0; n < x.logits.rows(); ++n) {
        T* logits = x.logits.data<T>() + n * columns;
        const int32_t target = x.targets.data<int32_t>()[n];
        const bool masked = target < 0;
        const double largest = *std::max_element(logits, logits + x.classes);
        double total = 0;
        for (int64_t j = 0; j < x.classes; ++j) total += std::exp(logits[j] - largest);
        const double log_sum_exp = largest + std::log(total);
        x.losses.data<Wide<T>>()[n] = static_cast<Wide<T>>(masked ? 0.0 : log_sum_exp - logits[target]);
        if (!x.write_gradient) continue;
        for (int64_t j = 0; j < columns; ++j) {
          const bool counted = !masked && j < x.classes;
          const double one_hot = j == target ? 1.0 : 0.0;
          logits[j] = static_cast<T>(counted ? x.gradient_scale * (std::exp(logits[j] - log_sum_exp) - one_hot) : 0.0);
        }
      }
    });
  });
}

}  // namespace dmuon::reference
