#include <cmath>
#include <limits>

#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

struct Problem {
  int64_t B, T, S, H, G, D;
  bool causal = true;
  int64_t key_offset = 0;
  double dropout = 0;
};

// Keys and values that no query sees hold NaN: a cache may be longer than what it holds.
Twin keys(Comparison& compare, const Problem& p) {
  const Twin keys = compare.normal({p.B, p.S, p.G, p.D});
  const int64_t seen = p.causal ? p.key_offset + p.T : p.S;
  if (seen == p.S) return keys;
  std::vector<double> values = to_doubles(compare.tested(), keys.tested);
  const int64_t row = p.G * p.D;
  for (int64_t b = 0; b < p.B; ++b)
    for (int64_t i = (b * p.S + seen) * row; i < (b + 1) * p.S * row; ++i)
      values[static_cast<size_t>(i)] = std::numeric_limits<double>::quiet_NaN();
  return compare.values({p.B, p.S, p.G, p.D}, values);
}

void attention(Comparison& compare, const Problem& p, bool backward) {
  compare.start(text("attention, B", p.B, " T", p.T, " S", p.S, " H", p.H, " G", p.G, " D", p.D, p.causal ? " causal" : "", " offset ",
                     p.key_offset, " dropout ", p.dropout, backward ? " backward" : ""));
  const Twin query = compare.normal({p.B, p.T, p.H, p.D}), key = keys(compare, p), value = keys(compare, p);
  const Twin output = compare.output({p.B, p.T, p.H, p.D});
  const Twin log_sum_exp = backward ? compare.wide_output({p.B, p.H, p.T}) : Twin{};
  const Twin d_output = compare.normal({p.B, p.T, p.H, p.D}), d_query = compare.output({p.B, p.T, p.H, p.D});
  const Twin d_key = compare.output({p.B, p.S, p.G, p.D}), d_value = compare.output({p.B, p.S, p.G, p.D});
  compare.on_both([&](Backend& backend, auto pick) {
    AttentionForward forward;
    forward.query = pick(query);
    forward.key = pick(key);
    forward.value = pick(value);
    forward.output = pick(output);
    forward.log_sum_exp = pick(log_sum_exp);
    forward.scale = 1.0 / std::sqrt(static_cast<double>(p.D));
    forward.causal = p.causal;
    forward.key_offset = p.key_offset;
    forward.dropout = {.probability = p.dropout, .seed = 77, .first_sequence = 5, .sequences = p.B};
    backend.attention().forward(backend.compute_stream(), forward);
    if (!backward) return;
    AttentionBackward arguments;
    arguments.forward = forward;
    arguments.d_output = pick(d_output);
    arguments.d_query = pick(d_query);
    arguments.d_key = pick(d_key);
    arguments.d_value = pick(d_value);
    backend.attention().backward(backend.compute_stream(), arguments);
  });
  const auto seen = static_cast<double>(p.S);
  compare.check("output", output, {.reduction = seen});
  if (!backward) return;
  compare.check("log_sum_exp", log_sum_exp, {.reduction = seen});
  const double queries = static_cast<double>(p.T * p.H / p.G);
  compare.check("d_query", d_query, {.reduction = seen, .magnitude = 1});
  compare.check("d_key", d_key, {.reduction = queries, .magnitude = 1});
  compare.check("d_value", d_value, {.reduction = queries, .magnitude = 1});
}

struct CacheProblem {
  std::vector<int64_t> offsets;  // keys that precede, of each sequence
  int64_t T, S, H, G, D;
  bool causal = true;
  double dropout = 0;
};

// Sequences of different lengths in one cache, whose rest holds NaN: the naive loops' values, and the bits of each sequence alone.
void attention_with_cache(Comparison& compare, const CacheProblem& p) {
  const auto B = static_cast<int64_t>(p.offsets.size());
  std::string offsets;
  for (const int64_t offset : p.offsets) offsets += text(" ", offset);
  compare.start(text("attention over a cache, T", p.T, " S", p.S, " H", p.H, " G", p.G, " D", p.D, p.causal ? " causal" : "", " dropout ",
                     p.dropout, " offsets", offsets));
  const Shape store{B, p.S, p.G, p.D}, fresh{B, p.T, p.G, p.D}, rows{B, p.T, p.H, p.D};
  const auto cache = [&] {
    std::vector<double> values = to_doubles(compare.tested(), compare.normal(store).tested);
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t position = static_cast<int64_t>(i) / (p.G * p.D);
      if (position % p.S >= p.offsets[static_cast<size_t>(position / p.S)]) values[i] = std::numeric_limits<double>::quiet_NaN();
    }
    return values;
  };
  const std::vector<double> keys = cache(), values = cache();
  const Twin query = compare.normal(rows), new_key = compare.normal(fresh), new_value = compare.normal(fresh);
  const auto call = [&](auto pick, const Twin& key, const Twin& value, const Twin& output, const Twin& log_sum_exp) {
    AttentionForward f;
    f.query = pick(query), f.key = pick(key), f.value = pick(value), f.new_key = pick(new_key), f.new_value = pick(new_value);
    f.output = pick(output), f.log_sum_exp = pick(log_sum_exp);
    f.scale = 1.0 / std::sqrt(static_cast<double>(p.D)), f.causal = p.causal, f.key_offsets = p.offsets;
    f.dropout = {.probability = p.dropout, .seed = 77, .first_sequence = 5, .sequences = B};
    return f;
  };
  const Twin key = compare.values(store, keys), value = compare.values(store, values);
  const Twin output = compare.output(rows), log_sum_exp = compare.wide_output({B, p.H, p.T});
  compare.on_both([&](Backend& backend, auto pick) {
    backend.attention().forward(backend.compute_stream(), call(pick, key, value, output, log_sum_exp));
  });
  const auto seen = static_cast<double>(p.S);
  compare.check("output", output, {.reduction = seen});
  compare.check("log_sum_exp", log_sum_exp, {.reduction = seen});

  // Alone: a cache that ends where the sequence does, its keys already in place.
  const Twin alone = compare.output(rows), alone_statistics = compare.wide_output({B, p.H, p.T});
  const AttentionForward all = call([](const Twin& twin) { return twin.tested; }, key, value, alone, alone_statistics);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t offset = p.offsets[static_cast<size_t>(b)], held = offset + p.T;
    AttentionForward one = all;
    const auto of = [&](const Tensor& tensor) { return tensor.slice(b, 1); };
    const auto filled = [&](const Tensor& tensor) { return of(tensor).flat().flat(0, held * p.G * p.D).reshape(Shape{1, held, p.G, p.D}); };
    one.query = of(all.query), one.output = of(all.output), one.log_sum_exp = of(all.log_sum_exp);
    one.key = filled(all.key), one.value = filled(all.value), one.new_key = one.new_value = Tensor();
    one.key_offsets.clear(), one.key_offset = offset;
    one.dropout.first_sequence += b, one.dropout.sequences = 1;
    compare.tested().attention().forward(compare.tested().compute_stream(), one);
  }
  if (p.dropout > 0) return;  // its numbers count the cache's positions
  compare.check_same_bits("output of a sequence alone", output.tested, alone.tested);
  compare.check_same_bits("log_sum_exp of a sequence alone", log_sum_exp.tested, alone_statistics.tested);
}

}  // namespace

OutputBits compare_attention_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  Comparison compare(tested, reference, precision);
  const Problem problems[] = {
      {.B = 2, .T = 1, .S = 1, .H = 1, .G = 1, .D = 7},
      {.B = 1, .T = 3, .S = 3, .H = 2, .G = 2, .D = 1},
      {.B = 1, .T = 17, .S = 17, .H = 3, .G = 3, .D = 36},
      {.B = 2, .T = 17, .S = 17, .H = 4, .G = 2, .D = 52, .dropout = 0.3},
      {.B = 2, .T = 65, .S = 65, .H = 6, .G = 1, .D = 64},
      {.B = 1, .T = 131, .S = 131, .H = 2, .G = 2, .D = 65},
      {.B = 1, .T = 200, .S = 200, .H = 1, .G = 1, .D = 32, .dropout = 0.5},
      {.B = 2, .T = 1, .S = 70, .H = 4, .G = 2, .D = 64, .key_offset = 69},
      {.B = 2, .T = 3, .S = 20, .H = 6, .G = 3, .D = 65, .key_offset = 17},
      {.B = 2, .T = 3, .S = 40, .H = 2, .G = 2, .D = 36, .key_offset = 9},
      {.B = 2, .T = 5, .S = 9, .H = 2, .G = 1, .D = 7, .causal = false},
      {.B = 1, .T = 70, .S = 33, .H = 2, .G = 2, .D = 64, .causal = false, .dropout = 0.25},
  };
  for (const Problem& problem : problems) {
    if (!precision.thorough() && problem.B * problem.H * problem.T > 400) continue;
    for (bool backward : {false, true}) attention(compare, problem, backward);
  }
  std::vector<int64_t> many;  // more sequences than one launch of a device takes
  for (int64_t b = 0; b < 67; ++b) many.push_back(b * 5 % 11);
  const CacheProblem caches[] = {
      {.offsets = {16, 0, 9, 3, 16}, .T = 1, .S = 17, .H = 4, .G = 2, .D = 36},
      {.offsets = {0, 61, 5}, .T = 1, .S = 300, .H = 3, .G = 1, .D = 65},
      {.offsets = {255, 0, 256, 257, 100}, .T = 1, .S = 258, .H = 2, .G = 2, .D = 32},
      {.offsets = {7, 0, 30}, .T = 3, .S = 33, .H = 6, .G = 3, .D = 7},
      {.offsets = {1, 40}, .T = 66, .S = 110, .H = 2, .G = 1, .D = 32},
      {.offsets = {4, 0, 9}, .T = 2, .S = 12, .H = 2, .G = 1, .D = 16, .causal = false},
      {.offsets = {4, 0, 9}, .T = 1, .S = 12, .H = 2, .G = 1, .D = 16, .dropout = 0.3},
      {.offsets = many, .T = 1, .S = 12, .H = 2, .G = 1, .D = 8},
  };
  for (const CacheProblem& problem : caches)
    if (precision.thorough() || problem.T * problem.H <= 20) attention_with_cache(compare, problem);
  compare_rotary_kernels(compare, precision);
  return std::move(compare).bits();
}

}  // namespace kernel_suite
