// Every operation against finite differences: odd sizes, all inputs, with and without memory assigned beforehand.
#include "autograd/gradient_check.h"

using namespace dmuon;
using namespace dmuon::test;

using Inputs = std::vector<Variable>;

TEST_CASE("embedding") {
  const auto with_dropout = [](double probability) {
    return [probability](ExecutionContext& context, const Inputs& in) {
      // Repeated tokens accumulate, rows that nobody names get zero.
      const Tensor tokens = index_tensor(context.backend, Shape{2, 3}, {4, 0, 4, 2, 4, 0});
      const Tensor positions = index_tensor(context.backend, Shape{2, 3}, {0, 1, 2, 0, 1, 2});
      return Inputs{embedding(context, tokens, in[0], positions, in[1], probability, 3)};
    };
  };
  check_gradients({Shape{5, 3}, Shape{4, 3}}, with_dropout(0.0), 2);
  check_gradients({Shape{5, 3}, Shape{4, 3}}, with_dropout(0.4), 2);
  check_gradients({Shape{6, 5}}, [](ExecutionContext& context, const Inputs& in) {
    return Inputs{embedding(context, index_tensor(context.backend, Shape{1, 3}, {5, 5, 1}), in[0], {}, {}, 0.0, 0)};
  });
}

TEST_CASE("linear") {
  const Operation with_bias = [](ExecutionContext& context, const Inputs& in) { return Inputs{linear(context, in[0], in[1], in[2])}; };
  check_gradients({Shape{2, 3, 5}, Shape{7, 5}, Shape{7}}, with_bias);
  check_gradients({Shape{1, 1}, Shape{1, 1}, Shape{1}}, with_bias);
  check_gradients({Shape{4, 3}, Shape{2, 3}},
                  [](ExecutionContext& context, const Inputs& in) { return Inputs{linear(context, in[0], in[1])}; });
}

TEST_CASE("a weight and an input used twice accumulate") {
  check_gradients({Shape{3, 4}, Shape{4, 4}, Shape{4}}, [](ExecutionContext& context, const Inputs& in) {
    const Variable once = linear(context, in[0], in[1], in[2]);
    return Inputs{linear(context, once, in[1], in[2]), linear(context, in[0], in[1])};
  });
}

TEST_CASE("bias_activation") {
  for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu_squared}) {
    INFO(static_cast<int>(kind));
    check_gradients({Shape{2, 3, 5}, Shape{5}},
                    [kind](ExecutionContext& context, const Inputs& in) { return Inputs{bias_activation(context, in[0], in[1], kind)}; });
    check_gradients({Shape{3, 7}},
                    [kind](ExecutionContext& context, const Inputs& in) { return Inputs{bias_activation(context, in[0], {}, kind)}; });
  }
}

TEST_CASE("swiglu") {
  check_gradients({Shape{2, 3, 5}, Shape{2, 3, 5}},
                  [](ExecutionContext& context, const Inputs& in) { return Inputs{swiglu(context, in[0], in[1])}; });
  // One value on both sides, and inputs that are given up: their memory is reused only where nobody reads it.
  check_gradients({Shape{3, 4}}, [](ExecutionContext& context, const Inputs& in) { return Inputs{swiglu(context, in[0], in[0])}; });
  check_gradients({Shape{3, 4}, Shape{5, 4}, Shape{5, 4}}, [](ExecutionContext& context, const Inputs& in) {
    Variable gate = linear(context, in[0], in[1]), up = linear(context, in[0], in[2]);
    const Variable kept = gate;
    const Variable output = swiglu(context, std::move(gate), std::move(up));
    return Inputs{output, kept};
  });
}

TEST_CASE("rotary") {
  RotaryOptions options;
  options.epsilon = 1e-3;
  const auto positions = [](ExecutionContext& context) { return index_tensor(context.backend, Shape{2, 3}, {0, 1, 2, 1000, 7, 2}); };
  for (const int64_t heads : {1, 3}) {
    options.heads = heads;
    const Shape x{2, 3, heads * 6};
    check_gradients(
        {x}, [&](ExecutionContext& context, const Inputs& in) { return Inputs{rotary(context, in[0], positions(context), options)}; }, 2);
    check_gradients(
        {x, Shape{6}},
        [&](ExecutionContext& context, const Inputs& in) { return Inputs{rotary(context, in[0], positions(context), options, in[1])}; }, 2);
    check_gradients(
        {x, Shape{6}, Shape{heads * 6, heads * 6}},
        [&](ExecutionContext& context, const Inputs& in) {
          const Variable once = rotary(context, linear(context, in[0], in[2]), positions(context), options, in[1]);
          return Inputs{rotary(context, linear(context, once, in[2]), positions(context), options), once};
        },
        2);
  }
}

TEST_CASE("normalization") {
  for (const NormalizationKind kind : {NormalizationKind::layer_norm, NormalizationKind::rms_norm}) {
    const NormalizationOptions options{kind, 1e-3};
    check_gradients({Shape{2, 3, 5}, Shape{5}, Shape{5}}, [&](ExecutionContext& context, const Inputs& in) {
      return Inputs{normalization(context, in[0], in[1], in[2], options)};
    });
    check_gradients({Shape{3, 7}, Shape{7}},
                    [&](ExecutionContext& context, const Inputs& in) { return Inputs{normalization(context, in[0], in[1], {}, options)}; });
    // The input is used elsewhere too: its gradient is completed in the normalisation's own pass.
    check_gradients({Shape{3, 4}, Shape{4}, Shape{4, 4}}, [&](ExecutionContext& context, const Inputs& in) {
      const Variable normalized = normalization(context, in[0], in[1], {}, options);
      return Inputs{normalized, linear(context, in[0], in[2])};
    });
  }
}

TEST_CASE("residual_normalization") {
  const std::vector<Shape> shapes{Shape{2, 3, 5}, Shape{2, 3, 5}, Shape{5}, Shape{5}, Shape{5}};
  for (const NormalizationKind kind : {NormalizationKind::layer_norm, NormalizationKind::rms_norm})
    for (const double probability : {0.0, 0.4}) {
      INFO("kind " << static_cast<int>(kind) << ", dropout " << probability);
      const NormalizationOptions options{kind, 1e-3};
      const auto apply = [&](ExecutionContext& context, const Inputs& in) {
        return residual_normalization(context, in[0], in[1], in[2], probability, 9, in[3], in[4], options);
      };
      check_gradients(
          shapes,
          [&](ExecutionContext& context, const Inputs& in) {
            const ResidualNormalization result = apply(context, in);
            return Inputs{result.residual, result.output};
          },
          2);
      check_gradients(
          shapes, [&](ExecutionContext& context, const Inputs& in) { return Inputs{apply(context, in).output}; }, 2);
      check_gradients({Shape{3, 5}, Shape{3, 5}, Shape{5}}, [&](ExecutionContext& context, const Inputs& in) {
        return Inputs{residual_normalization(context, in[0], in[1], {}, probability, 9, in[2], {}, options).output};
      });
    }
}

TEST_CASE("residual_normalization whose norm is not used passes the residual's gradient on") {
  for (const double probability : {0.0, 0.4})
    check_gradients(
        {Shape{2, 3, 5}, Shape{2, 3, 5}, Shape{5}},
        [&](ExecutionContext& context, const Inputs& in) {
          const Variable weight(make_tensor(context.backend, Shape{5}, std::vector<double>(5, 1.0)));
          return Inputs{residual_normalization(context, in[0], in[1], in[2], probability, 9, weight, {}, {}).residual};
        },
        2);
}

TEST_CASE("attention") {
  struct Case {
    int64_t heads, groups, channels, length;
    bool causal;
    double dropout;
  };
  for (const Case& c : {Case{1, 1, 3, 5, true, 0.0}, Case{4, 2, 3, 5, true, 0.0}, Case{3, 1, 2, 7, false, 0.0}, Case{2, 2, 1, 1, true, 0.0},
                        Case{4, 2, 3, 5, true, 0.3}, Case{3, 3, 2, 4, false, 0.3}}) {
    INFO("heads " << c.heads << ", groups " << c.groups << ", dropout " << c.dropout);
    AttentionOptions options;
    options.heads = c.heads;
    options.key_value_heads = c.groups;
    options.causal = c.causal;
    options.dropout = c.dropout;
    options.operation = 4;
    const Shape query{2, c.length, c.heads * c.channels}, key{2, c.length, c.groups * c.channels};
    check_gradients(
        {query, key, key},
        [&](ExecutionContext& context, const Inputs& in) { return Inputs{attention(context, in[0], in[1], in[2], options)}; }, 2);
  }
}

TEST_CASE("add and dropout") {
  check_gradients({Shape{3, 5}, Shape{3, 5}},
                  [](ExecutionContext& context, const Inputs& in) { return Inputs{add(context, in[0], in[1])}; });
  check_gradients({Shape{3, 5}}, [](ExecutionContext& context, const Inputs& in) { return Inputs{add(context, in[0], in[0])}; });
  check_gradients(
      {Shape{2, 3, 5}}, [](ExecutionContext& context, const Inputs& in) { return Inputs{dropout(context, in[0], 0.5, 2)}; }, 2);
}

TEST_CASE("a gradient shared by both sides of a residual is not corrupted by later contributions") {
  // Without dropout x and branch share one gradient tensor; here each of them also collects others, before and after.
  const NormalizationOptions options;
  check_gradients({Shape{3, 4}, Shape{4, 4}, Shape{4}, Shape{3, 4}}, [&](ExecutionContext& context, const Inputs& in) {
    const Variable x = linear(context, in[0], in[1]);
    const Variable branch = bias_activation(context, x, {}, ActivationKind::gelu);
    const Variable early = add(context, x, branch);  // its backward runs after the shared tensor was handed out
    const ResidualNormalization sum = residual_normalization(context, x, branch, {}, 0.0, 1, in[2], {}, options);
    const Variable late = add(context, x, branch);  // its backward runs before
    return Inputs{early, sum.residual, sum.output, late, add(context, in[3], sum.residual)};
  });
}

TEST_CASE("recompute") {
  const RecomputeBody body = [](ExecutionContext& context, const Inputs& in) {
    const ResidualNormalization sum = residual_normalization(context, in[0], in[1], {}, 0.3, 5, in[2], {}, {});
    return Inputs{sum.residual, bias_activation(context, sum.output, {}, ActivationKind::gelu_tanh)};
  };
  check_gradients(
      {Shape{2, 3, 4}, Shape{2, 3, 4}, Shape{4}}, [&](ExecutionContext& context, const Inputs& in) { return recompute(context, in, body); },
      2);
  // Only one of the outputs is used, and an input is used outside as well.
  check_gradients(
      {Shape{2, 3, 4}, Shape{2, 3, 4}, Shape{4}},
      [&](ExecutionContext& context, const Inputs& in) {
        return Inputs{recompute(context, in, body)[1], add(context, in[0], in[0])};
      },
      2);
}
