// Wrong shapes and dtypes name the operation and what was found.
#include "autograd/gradient_check.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Matchers::Contains;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  Variable of(const Shape& shape, DType dtype = DType::float64) {
    return Variable(backend->allocate(shape, dtype, MemoryCategory::data, "test"));
  }
  Tensor indices(const Shape& shape) { return backend->allocate(shape, DType::int32, MemoryCategory::data, "test"); }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "linear refuses what does not fit") {
  CHECK_THROWS_AS(linear(context, of({3, 5}), of({7, 4})), ShapeError);
  CHECK_THROWS_WITH(linear(context, of({3, 5}), of({7, 4})), Contains("linear") && Contains("[3, 5]") && Contains("[7, 4]"));
  CHECK_THROWS_WITH(linear(context, of({3, 5}), of({7, 5}, DType::float32)), Contains("float64[out, 5]") && Contains("float32[7, 5]"));
  CHECK_THROWS_WITH(linear(context, of({3, 5}), of({7, 5}), of({5})), Contains("bias") && Contains("float64[7]"));
  CHECK_THROWS_AS(linear(context, of({3, 5}), of({35})), ShapeError);
}

TEST_CASE_METHOD(Fixture, "rotary and swiglu refuse what does not fit") {
  RotaryOptions options;
  options.heads = 2;
  CHECK_THROWS_WITH(rotary(context, of({2, 3, 10}), indices({2, 3}), options), Contains("rotary") && Contains("D even"));
  CHECK_THROWS_WITH(rotary(context, of({6, 8}), indices({6}), options), Contains("[B, T, H*D]") && Contains("[6, 8]"));
  CHECK_THROWS_WITH(rotary(context, of({2, 3, 8}), indices({3, 2}), options), Contains("positions int32[2, 3]"));
  CHECK_THROWS_WITH(rotary(context, of({2, 3, 8}), of({2, 3}).value(), options), Contains("positions must be int32"));
  CHECK_THROWS_WITH(rotary(context, of({2, 3, 8}), indices({2, 3}), options, of({8})), Contains("weight") && Contains("float64[4]"));
  CHECK_THROWS_AS(swiglu(context, of({3, 5}), of({5, 3})), ShapeError);
  CHECK_THROWS_WITH(swiglu(context, of({3, 5}), of({3, 5}, DType::float32)), Contains("swiglu") && Contains("float32[3, 5]"));
}

TEST_CASE_METHOD(Fixture, "other operations refuse what does not fit") {
  CHECK_THROWS_WITH(bias_activation(context, of({3, 5}), of({4}), ActivationKind::gelu), Contains("bias_activation") && Contains("[4]"));
  CHECK_THROWS_WITH(normalization(context, of({3, 5}), of({4}), {}, {}), Contains("normalization") && Contains("weight"));
  CHECK_THROWS_WITH(residual_normalization(context, of({3, 5}), of({5, 3}), {}, 0, 0, of({5}), {}, {}),
                    Contains("residual_normalization") && Contains("[5, 3]"));
  CHECK_THROWS_WITH(add(context, of({3, 5}), of({3, 5}, DType::float32)), Contains("add") && Contains("float32[3, 5]"));
  CHECK_THROWS_WITH(embedding(context, indices({6}), of({5, 3}), {}, {}, 0, 0), Contains("embedding") && Contains("[B, T]"));
  CHECK_THROWS_WITH(embedding(context, of({2, 3}).value(), of({5, 3}), {}, {}, 0, 0), Contains("int32"));
  CHECK_THROWS_WITH(embedding(context, indices({2, 3}), of({5, 3}), indices({3, 2}), of({5, 3}), 0, 0), Contains("positions"));
  CHECK_THROWS_WITH(embedding(context, indices({2, 3}), of({5, 3}), indices({2, 3}), of({5, 4}), 0, 0), Contains("position table"));
  CHECK_THROWS_WITH(softmax_cross_entropy(context, of({3, 5}), indices({3}), 6, 1.0), Contains("classes, found 6"));
  CHECK_THROWS_WITH(softmax_cross_entropy(context, of({3, 5}), indices({4}), 5, 1.0), Contains("need 3 targets") && Contains("int32[4]"));
  CHECK_THROWS_AS(dropout(context, of({3, 5}), 1.0, 0), ConfigError);
  CHECK_THROWS_AS(dropout(context, of({3, 5}), -0.1, 0), ConfigError);
}

TEST_CASE_METHOD(Fixture, "attention refuses what does not fit") {
  AttentionOptions options;
  options.heads = 4;
  options.key_value_heads = 3;
  CHECK_THROWS_WITH(attention(context, of({2, 3, 8}), of({2, 3, 6}), of({2, 3, 6}), options), Contains("not a multiple of 3"));
  options.key_value_heads = 2;
  CHECK_THROWS_WITH(attention(context, of({2, 3, 9}), of({2, 3, 4}), of({2, 3, 4}), options), Contains("H = 4"));
  CHECK_THROWS_WITH(attention(context, of({2, 3, 8}), of({2, 3, 6}), of({2, 3, 4}), options), Contains("[2, 3, 4]"));
  AttentionCache cache{of({2, 4, 4}).value(), of({2, 4, 4}).value(), {2, 1}};
  CHECK_THROWS_WITH(attention(context, of({2, 3, 8}), of({2, 3, 4}), of({2, 3, 4}), options, &cache), Contains("capacity 4"));
  Tape tape;
  context.tape = &tape;
  CHECK_THROWS_WITH(attention(context, of({2, 1, 8}), of({2, 1, 4}), of({2, 1, 4}), options, &cache), Contains("generation"));
}

TEST_CASE_METHOD(Fixture, "undefined values and unpublished parameters are named") {
  auto state = std::make_shared<ParameterState>();
  state->name = "blocks.3.mlp.up.weight";
  CHECK_THROWS_AS(linear(context, of({3, 5}), Variable(state)), ShapeError);
  CHECK_THROWS_WITH(linear(context, of({3, 5}), Variable(state)), Contains("blocks.3.mlp.up.weight") && Contains("not published"));
  CHECK_THROWS_WITH(linear(context, Variable(), of({3, 5})), Contains("undefined"));
}

TEST_CASE("token indices are checked on the host") {
  const std::vector<int32_t> good{0, 4, 3}, high{0, 5}, low{1, 2, -1};
  CHECK_NOTHROW(check_tokens(good, 5, "prompt"));
  CHECK_NOTHROW(check_tokens({}, 5, "prompt"));
  CHECK_THROWS_AS(check_tokens(high, 5, "prompt"), DataError);
  CHECK_THROWS_WITH(check_tokens(high, 5, "prompt"), Contains("prompt") && Contains("index 5") && Contains("position 1"));
  CHECK_THROWS_WITH(check_tokens(low, 5, "prompt"), Contains("index -1") && Contains("position 2"));
}
