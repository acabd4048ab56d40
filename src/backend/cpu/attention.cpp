#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/kernel_flops.h"

namespace dmuon::cpu {
namespace {

simd::AttentionTask task_of(const AttentionForward& f) {
  simd::AttentionTask task;
  task.queries = f.query.size(1), task.keys = f.key.size(1);
  task.heads = f.query.size(2), task.key_heads = f.key.size(2), task.depth = f.query.size(3);
  task.held = task.keys;
  task.key_offset = f.key_offset, task.causal = f.causal, task.scale = static_cast<float>(f.scale);
  return task;
}

// The task of the sequence that precedes its first query by `offset` keys.
simd::AttentionTask with_offset(simd::AttentionTask task, int64_t offset) {
  task.key_offset = offset, task.held = offset + task.queries;
  return task;
}

void set_pointers(simd::AttentionTask& task, const AttentionForward& f) {
  task.query = f.query.data<float>(), task.key = f.key.data<float>(), task.value = f.value.data<float>();
  task.output = f.output.data<float>(), task.log_sum_exp = optional_data(f.log_sum_exp);
  task.dropout = dropout_of(f.dropout, f.query.size(0) * task.heads * task.queries * task.keys);
}

// How often each head is cut so that the parts of a team are level: not at all when heads divide evenly or abound.
int64_t cuts_per_head(int64_t heads, int64_t parts, int64_t length) {
  if (heads % parts == 0 || heads >= 4 * parts) return 1;
  return std::max<int64_t>(1, std::min(parts / std::gcd(heads, parts), length / 64));
}

// Boundary of piece i of n over `length` queries; under a causal mask work grows with the position.
int64_t boundary(int64_t i, int64_t n, int64_t length, bool triangular, int64_t multiple) {
  const double fraction = static_cast<double>(i) / static_cast<double>(n);
  const double at = (triangular ? std::sqrt(fraction) : fraction) * static_cast<double>(length);
  return i == n ? length : std::min(length, static_cast<int64_t>(at / static_cast<double>(multiple)) * multiple);
}

// Where `units` pieces of work of every sequence, each as much as the sequence has keys, are cut so that parts of a team are level.
class LevelCuts {
 public:
  LevelCuts(const std::vector<int64_t>& offsets, int64_t queries, int64_t units) : units_(units) {
    for (const int64_t offset : offsets) before_.push_back(before_.back() + std::max<int64_t>(1, offset + queries) * units);
  }
  // First piece of part `part` of `parts`.
  int64_t boundary(int part, int parts) const {
    const int64_t work = before_.back() / parts * part + before_.back() % parts * part / parts;
    const auto sequence = std::upper_bound(before_.begin(), before_.end() - 1, work) - before_.begin() - 1;
    const auto at = static_cast<size_t>(sequence);
    if (part == parts) return static_cast<int64_t>(before_.size() - 1) * units_;
    const int64_t of_one = (before_[at + 1] - before_[at]) / units_;
    return sequence * units_ + (work - before_[at] + of_one / 2) / of_one;
  }

 private:
  int64_t units_;
  std::vector<int64_t> before_{0};  // work of the sequences before each
};

// The new keys and values of every sequence behind those that it holds.
void append(const Team& team, const AttentionForward& f) {
  const int64_t capacity = f.key.size(1), row = f.key.size(2) * f.key.size(3), fresh = f.query.size(1) * row;
  team.split(f.query.size(0), 1, fresh == 0 ? 0 : 16384 / fresh, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = (b * capacity + f.key_offsets[static_cast<size_t>(b)]) * row;
      std::copy_n(f.new_key.data<float>() + b * fresh, fresh, f.key.data<float>() + at);
      std::copy_n(f.new_value.data<float>() + b * fresh, fresh, f.value.data<float>() + at);
    }
  });
}

}  // namespace

void Attention::forward(Stream& stream, const AttentionForward& f) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const simd::AttentionTask shape = task_of(f);
  const bool own_offsets = !f.key_offsets.empty();
  const int64_t batch = f.query.size(0), heads = batch * shape.heads;
  const simd::AttentionTask longest =
      own_offsets ? with_offset(shape, *std::max_element(f.key_offsets.begin(), f.key_offsets.end())) : shape;
  const int64_t floats = (simd.attention_forward_workspace_floats(longest) + 15) / 16 * 16;
  const Tensor workspace = backend_.workspace(floats * team.parts, "packed keys and values");
  backend_.launch(stream, "attention_forward", flops_of(f),
                  {f.query, f.key, f.value, f.output, f.log_sum_exp, f.new_key, f.new_value, workspace}, [=, &simd] {
                    if (f.new_key.defined()) append(team, f);
                    simd::AttentionTask task = shape;
                    set_pointers(task, f);
                    const int64_t cuts = cuts_per_head(heads, team.parts, task.queries), multiple = 2 * simd.tile_rows;
                    const auto run = [&](int part, int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t head = i / cuts, piece = i % cuts, sequence = head / task.heads;
                        const simd::AttentionTask own =
                            own_offsets ? with_offset(task, f.key_offsets[static_cast<size_t>(sequence)]) : task;
                        const bool triangular = own.causal && own.key_offset == 0;
                        const int64_t first = boundary(piece, cuts, own.queries, triangular, multiple);
                        const int64_t last = boundary(piece + 1, cuts, own.queries, triangular, multiple);
                        if (first < last)
                          simd.attention_forward(own, sequence, head % own.heads, first, last, workspace.data<float>() + part * floats);
                      }
                    };
                    if (!own_offsets) return team.split(heads * cuts, 1, 0, run);
                    const LevelCuts level(f.key_offsets, task.queries, task.heads * cuts);
                    team.run([&](int part) { run(part, level.boundary(part, team.parts), level.boundary(part + 1, team.parts)); });
                  });
}

// One key head with its query heads is one unit of work. Where units don't level out over the team, each is cut, and
// the two halves (gradients of queries by ranges of queries, of keys and values by ranges of keys) run apart, at the price of
// computing the scores twice.
void Attention::backward(Stream& stream, const AttentionBackward& a) {
  const AttentionForward& f = a.forward;
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const simd::AttentionTask shape = task_of(f);
  const int64_t units = f.query.size(0) * shape.key_heads;
  const int64_t floats = (simd.attention_backward_workspace_floats(shape) + 15) / 16 * 16;
  const Tensor workspace = backend_.workspace(floats * team.parts, "packed heads of an attention backward");
  backend_.launch(stream, "attention_backward", flops_of(a),
                  {f.query, f.key, f.value, f.output, f.log_sum_exp, a.d_output, a.d_query, a.d_key, a.d_value, workspace}, [=, &simd] {
                    simd::AttentionBackwardTask task;
                    task.forward = shape;
                    set_pointers(task.forward, a.forward);
                    task.d_output = a.d_output.data<float>();
                    task.d_query = a.d_query.data<float>(), task.d_key = a.d_key.data<float>(), task.d_value = a.d_value.data<float>();
                    const int64_t cuts = cuts_per_head(units, team.parts, std::min(shape.queries, shape.keys));
                    const bool triangular = shape.causal && shape.key_offset == 0;
                    const auto run = [&](const simd::AttentionBackwardTask& part_task, int64_t unit, int64_t q0, int64_t q1, int64_t k0,
                                         int64_t k1, int part) {
                      simd.attention_backward(part_task, unit / shape.key_heads, unit % shape.key_heads, q0, q1, k0, k1,
                                              workspace.data<float>() + part * floats);
                    };
                    team.split(units * cuts, 1, 0, [&](int part, int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t unit = i / cuts, piece = i % cuts;
                        if (cuts == 1) {
                          run(task, unit, 0, shape.queries, 0, shape.keys, part);
                          continue;
                        }
                        simd::AttentionBackwardTask half = task;
                        half.key_part = false;
                        const int64_t q0 = boundary(piece, cuts, shape.queries, triangular, 16),
                                      q1 = boundary(piece + 1, cuts, shape.queries, triangular, 16);
                        if (q0 < q1) run(half, unit, q0, q1, 0, shape.keys, part);
                        half.key_part = true, half.query_part = false;
                        // Early keys are seen by more queries: the mirror image of the cuts above.
                        const int64_t k0 = shape.keys - boundary(cuts - piece, cuts, shape.keys, triangular, 16);
                        const int64_t k1 = shape.keys - boundary(cuts - piece - 1, cuts, shape.keys, triangular, 16);
                        if (k0 < k1) run(half, unit, 0, shape.queries, k0, k1, part);
                      }
                    });
                  });
}

}  // namespace dmuon::cpu
