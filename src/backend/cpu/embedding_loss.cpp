#include <cstring>

#include "backend/cpu/cpu_backend.h"

namespace dmuon::cpu {

void EmbeddingLoss::embedding_forward(Stream& stream, const EmbeddingForward& e) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "embedding_forward", 0, {e.tokens, e.positions, e.token_table, e.position_table, e.output}, [=, &simd] {
    simd::EmbeddingTask task;
    task.columns = e.output.size(-1);
    task.tokens = e.tokens.data<int32_t>(), task.token_table = e.token_table.data<float>();
    if (e.positions.defined() && e.position_table.defined())
      task.positions = e.positions.data<int32_t>(), task.position_table = e.position_table.data<float>();
    task.dropout = dropout_of(e.dropout, e.output.elements());
    task.output = e.output.data<float>();
    team.split(e.tokens.elements(), 1, 16384 / std::max<int64_t>(1, task.columns),
               [&](int, int64_t begin, int64_t end) { simd.embedding_forward(task, begin, end); });
  });
}

// Threads take ranges of columns, so every element of a table is added to in the order of n by one thread.
void EmbeddingLoss::embedding_backward(Stream& stream, const EmbeddingBackward& e) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "embedding_backward", 0, {e.tokens, e.positions, e.d_output, e.d_token_table, e.d_position_table}, [=, &simd] {
    simd::EmbeddingTask task;
    task.columns = e.d_output.size(-1);
    task.dropout = dropout_of(e.dropout, e.d_output.elements());
    task.d_output = e.d_output.data<float>();
    const int64_t rows = e.d_output.rows();
    const auto add = [&](const Tensor& indices, const Tensor& table, bool accumulate) {
      if (!table.defined()) return;
      float* to = table.data<float>();
      if (!accumulate)
        team.split(table.elements(), 1024, 16384,
                   [&](int, int64_t begin, int64_t end) { std::memset(to + begin, 0, static_cast<size_t>(end - begin) * sizeof(float)); });
      if (!indices.defined()) return;
      // Ranges on multiples of 64 columns: whole blocks of the dropout mask.
      team.split(task.columns, 64, e.d_output.elements() < 16384 ? task.columns + 1 : 0,
                 [&](int, int64_t begin, int64_t end) { simd.embedding_backward(task, indices.data<int32_t>(), to, rows, begin, end); });
    };
    add(e.tokens, e.d_token_table, e.accumulate_token_table);
    add(e.positions, e.d_position_table, e.accumulate_position_table);
  });
}

void EmbeddingLoss::softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& s) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "softmax_cross_entropy", 0, {s.logits, s.targets, s.losses}, [=, &simd] {
    simd::CrossEntropyTask task;
    task.columns = s.logits.size(-1), task.classes = s.classes;
    task.logits = s.logits.data<float>(), task.targets = s.targets.data<int32_t>(), task.losses = s.losses.data<float>();
    task.write_gradient = s.write_gradient, task.gradient_scale = static_cast<float>(s.gradient_scale);
    team.split(s.targets.elements(), 1, 16384 / std::max<int64_t>(1, task.columns),
               [&](int, int64_t begin, int64_t end) { simd.softmax_cross_entropy(task, begin, end); });
  });
}

}  // namespace dmuon::cpu
