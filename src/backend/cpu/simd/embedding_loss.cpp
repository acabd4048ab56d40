#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/math.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

// table[column_begin, column_end) += the row's gradient, under its dropout mask.
void add_row(const EmbeddingTask& task, int64_t row, int64_t begin, int64_t end, float* table_row) {
  const float* d = task.d_output + row * task.columns;
  float factors[dropout_block];
  for (int64_t i = begin; i < end; i += dropout_block) {
    const int64_t count = end - i < dropout_block ? end - i : dropout_block;
    if (task.dropout.active) flat_dropout_factors(task.dropout, row * task.columns + i, count, factors);
    for (int64_t j = 0; j < count; j += lanes) {
      const int64_t left = count - j;
      Floats v = load_row(d + i + j, left);
      if (task.dropout.active) v *= load_row(factors + j, left);
      store_row(table_row + i + j, load_row(table_row + i + j, left) + v, left);
    }
  }
}

}  // namespace

void embedding_forward(const EmbeddingTask& task, int64_t begin, int64_t end) {
  const int64_t columns = task.columns;
  float factors[dropout_block];
  for (int64_t row = begin; row < end; ++row) {
    const float* token = task.token_table + task.tokens[row] * columns;
    const float* position = task.positions ? task.position_table + task.positions[row] * columns : nullptr;
    float* out = task.output + row * columns;
    for (int64_t i = 0; i < columns; i += lanes) {
      const int64_t left = columns - i;
      Floats v = load_row(token + i, left);
      if (position) v += load_row(position + i, left);
      if (task.dropout.active) {
        if (i % dropout_block == 0)
          flat_dropout_factors(task.dropout, row * columns + i, left < dropout_block ? left : dropout_block, factors);
        v *= load_row(factors + i % dropout_block, left);
      }
      store_row(out + i, v, left);
    }
  }
}

void embedding_backward(const EmbeddingTask& task, const int32_t* indices, float* table, int64_t rows, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < rows; ++row) add_row(task, row, begin, end, table + indices[row] * task.columns);
}

// One row: its maximum, exponentials and their sum (kept in place for the gradient), then one scaling. The row stays in
// the L2 cache between the passes.
void softmax_cross_entropy(const CrossEntropyTask& task, int64_t begin, int64_t end) {
  const int64_t classes = task.classes;
  for (int64_t row = begin; row < end; ++row) {
    float* x = task.logits + row * task.columns;
    const int32_t target = task.targets[row];
    if (target < 0) {
      task.losses[row] = 0.0f;
      if (task.write_gradient) clear(x, task.columns);
      continue;
    }
    const float lowest = -__builtin_inff();
    Floats best = broadcast(lowest);
    for (int64_t i = 0; i < classes; i += lanes) best = maximum(best, load_row(x + i, classes - i, lowest));
    const float top = horizontal_maximum(best), at_target = x[target];
    double total = 0.0;  // blocks of floats, blocks in double: 150,000 classes lose nothing
    constexpr int64_t block = 1024;
    for (int64_t first = 0; first < classes; first += block) {
      const int64_t last = first + block < classes ? first + block : classes;
      Floats sum{};
      for (int64_t i = first; i < last; i += lanes) {
        const Floats e = exponential(load_row(x + i, last - i, lowest) - top);
        sum += e;
        if (task.write_gradient) store_row(x + i, e, last - i);
      }
      total += static_cast<double>(horizontal_sum(sum));
    }
    task.losses[row] = static_cast<float>(__builtin_log(total) + (static_cast<double>(top) - static_cast<double>(at_target)));
    if (!task.write_gradient) continue;
    const float factor = static_cast<float>(static_cast<double>(task.gradient_scale) / total);
    for (int64_t i = 0; i < classes; i += lanes) store_row(x + i, load_row(x + i, classes - i) * factor, classes - i);
    x[target] -= task.gradient_scale;
    if (task.columns > classes) clear(x + classes, task.columns - classes);
  }
}

}  // namespace dmuon::DMUON_SIMD
