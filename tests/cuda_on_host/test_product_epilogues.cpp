// Products with passes on the way against the separate kernels of the reference backend, and the feed-forward block that uses them.
#include "cuda_on_host/model_case.h"
#include "dmuon/autograd/feed_forward.h"
#include "dmuon/backend/product_epilogues.h"

using namespace dmuon;
using namespace model_case;

namespace {

void taken(bool queued) { CHECK(queued); }

struct Sizes {
  int64_t rows, inner, width;
};

// The gradients of a weight [inner, width] and its bias, written and then added to.
void bias_gradient(ModelCase& c, const Sizes& s) {
  const Pair d_output = c.normal({s.rows, s.inner}), x = c.normal({s.rows, s.width});
  const Pair d_weight = c.float_output({s.inner, s.width}), d_bias = c.float_output({s.inner});
  for (const bool accumulate : {false, true}) {
    c.on_both([&](Backend& backend, auto pick) {
      BiasGradientProduct g;
      g.product.a = pick(d_output), g.product.transpose_a = true, g.product.b = pick(x), g.product.c = pick(d_weight);
      g.product.beta = accumulate ? 1.0 : 0.0;
      g.d_bias = pick(d_bias), g.accumulate_bias = accumulate;
      if (ProductEpilogues* const epilogues = product_epilogues(backend))
        return taken(epilogues->multiply_with_bias_gradient(backend.compute_stream(), g));
      backend.matrix().multiply(backend.compute_stream(), g.product);
      backend.matrix().column_sum(backend.compute_stream(), {g.product.a, g.d_bias, accumulate});
    });
    const std::string name = text("gradients of a weight ", s.inner, "x", s.width, " over ", s.rows, accumulate ? " rows, added" : " rows");
    c.check(name, d_weight);
    c.check(name + ", bias", d_bias);
  }
}

void gelu(ModelCase& c, const Sizes& s, bool with_bias) {
  const Pair x = c.normal({s.rows, s.width}), weight = c.normal({s.inner, s.width}), bias = c.normal({s.inner});
  const Pair kept = c.output({s.rows, s.inner}), output = c.output({s.rows, s.inner});
  c.on_both([&](Backend& backend, auto pick) {
    GeluProduct g;
    g.product.a = pick(x), g.product.b = pick(weight), g.product.transpose_b = true, g.product.c = pick(output);
    if (with_bias) g.product.bias = pick(bias);
    g.pre_activation = pick(kept);
    if (ProductEpilogues* const epilogues = product_epilogues(backend)) return taken(epilogues->multiply_gelu(backend.compute_stream(), g));
    g.product.c = pick(kept);
    backend.matrix().multiply(backend.compute_stream(), g.product);
    backend.activation().forward(backend.compute_stream(), {ActivationKind::gelu_tanh, pick(kept), {}, pick(output)});
  });
  const std::string name = text("gelu of ", s.rows, "x", s.inner, with_bias ? " with bias" : "");
  c.check(name, output);
  c.check(name + ", what went into it", kept);
}

void gelu_gradient(ModelCase& c, const Sizes& s) {
  const Pair d_output = c.normal({s.rows, s.width}), weight = c.normal({s.width, s.inner}), kept = c.normal({s.rows, s.inner});
  const Pair result = c.output({s.rows, s.inner});
  c.on_both([&](Backend& backend, auto pick) {
    GeluGradientProduct g;
    g.product.a = pick(d_output), g.product.b = pick(weight), g.product.c = pick(result);
    g.pre_activation = pick(kept);
    if (ProductEpilogues* const epilogues = product_epilogues(backend))
      return taken(epilogues->multiply_gelu_gradient(backend.compute_stream(), g));
    backend.matrix().multiply(backend.compute_stream(), g.product);
    ActivationBackward a;
    a.kind = ActivationKind::gelu_tanh;
    a.input = pick(kept), a.d_output = a.d_input = pick(result);
    backend.activation().backward(backend.compute_stream(), a);
  });
  c.check(text("gradient of gelu of ", s.rows, "x", s.inner), result);
}

// What a feed-forward block gives for equal numbers: its output and every gradient, and how often each kernel ran.
struct Block {
  std::vector<std::vector<double>> values;
  std::map<std::string, KernelCost> costs;

  int64_t calls(const std::string& kernel) const {
    const auto found = costs.find(kernel);
    return found == costs.end() ? 0 : found->second.calls;
  }
};

Block feed_forward_of(Backend& backend, DType dtype, const Sizes& s, ActivationKind kind) {
  uint64_t draws = 0;
  const auto normal = [&](const Shape& shape) {
    const Random random(++draws, RandomStream::test);
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(bfloat16(static_cast<float>(random.normal(i) / 2)));
    const Tensor tensor = backend.allocate(shape, backend.computes_in(dtype) ? dtype : DType::float64, MemoryCategory::data, "test");
    from_doubles(backend, values, tensor);
    return tensor;
  };
  const auto leaf = [&](const Shape& shape) { return Variable(normal(shape), std::make_shared<GradientSlot>()); };
  const Variable x = leaf({2, s.rows, s.width});
  const FeedForwardLayers layers{leaf({s.inner, s.width}), leaf({s.inner}), leaf({s.width, s.inner}), leaf({s.width})};
  const Tensor d_output = normal({2, s.rows, s.width});

  backend.reset_costs();
  Tape tape;
  ExecutionContext context{backend, backend.compute_stream()};
  context.tape = &tape;
  const Variable output = feed_forward(context, x, layers, kind);
  Block block;
  block.values.push_back(to_doubles(backend, output.value()));
  contribute(context, output, d_output);
  tape.backward(context);
  block.costs = backend.costs();
  for (const Variable& variable : {x, layers.up_weight, layers.up_bias, layers.down_weight, layers.down_bias})
    block.values.push_back(to_doubles(backend, take_gradient(variable)));
  return block;
}

// By norms: 1e-5 in float32; bfloat16 rounds four times between x and its gradient.
void check_block(const Block& found, const Block& expected, DType dtype) {
  REQUIRE(found.values.size() == expected.values.size());
  for (size_t i = 0; i < found.values.size(); ++i) {
    double difference = 0, size = 0;
    REQUIRE(found.values[i].size() == expected.values[i].size());
    for (size_t j = 0; j < found.values[i].size(); ++j) {
      difference += std::pow(found.values[i][j] - expected.values[i][j], 2);
      size += std::pow(expected.values[i][j], 2);
    }
    INFO(name_of(dtype) << ", value " << i);
    CHECK(std::sqrt(difference / size) < (dtype == DType::bfloat16 ? 1e-2 : 1e-5));
  }
}

template <class Run>
void in_both_dtypes(const Run& run) {
  const auto reference = kernel_suite::open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  for (const DType dtype : {DType::float32, DType::bfloat16}) run(*backend, *reference, dtype);
}

constexpr Sizes odd[] = {{1, 8, 1}, {5, 24, 7}, {37, 72, 33}, {3, 8, 513}};

}  // namespace

TEST_CASE("a product gives the bias gradient beside the weight's, into any memory") {
  in_both_dtypes([](Backend& backend, Backend& reference, DType dtype) {
    for (const int64_t shift : {0, 3}) {
      ModelCase c(backend, reference, dtype, shift);
      for (const Sizes& s : odd) bias_gradient(c, s);
      for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{37, 5, 11}, Sizes{260, 33, 17}}) bias_gradient(c, s);
    }
  });
}

TEST_CASE("a product gives gelu and keeps what went into it, and multiplies with gelu's derivative") {
  in_both_dtypes([](Backend& backend, Backend& reference, DType dtype) {
    ModelCase c(backend, reference, dtype);
    for (const Sizes& s : odd) {
      gelu(c, s, true);
      gelu(c, s, false);
      gelu_gradient(c, s);
    }
  });
}

TEST_CASE("products that the library cannot take are declined, and nothing runs") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const auto make = [&](const Shape& shape, int64_t shift = 0) {
    return backend->allocate({shape.elements() + shift}, DType::float32, MemoryCategory::data, "test")
        .flat(shift, shape.elements())
        .reshape(shape);
  };
  ProductEpilogues& epilogues = *product_epilogues(*backend);
  backend->reset_costs();
  GeluProduct g{{make({5, 3}), make({8, 3}), make({5, 8}), false, true, 1.0, 0.0, make({8})}, make({5, 8})};
  const auto declined = [&](const GeluProduct& product) { return !epilogues.multiply_gelu(backend->compute_stream(), product); };
  GeluProduct other = g;
  other.product.b = make({7, 3}), other.product.c = make({5, 7}), other.product.bias = make({7}), other.pre_activation = make({5, 7});
  CHECK(declined(other));  // rows that are no multiple of 8
  other = g, other.pre_activation = make({5, 8}, 1);
  CHECK(declined(other));
  other = g, other.product.bias = make({8}, 1);
  CHECK(declined(other));
  other = g, other.product.beta = 1.0;
  CHECK(declined(other));
  other = g, other.product.a = make({5, 0}), other.product.b = make({8, 0});
  CHECK(declined(other));
  BiasGradientProduct sums{{make({0, 8}), make({0, 3}), make({8, 3}), true, false, 1.0, 0.0, {}}, make({8})};
  CHECK_FALSE(epilogues.multiply_with_bias_gradient(backend->compute_stream(), sums));
  CHECK(backend->costs().empty());
  CHECK_FALSE(declined(g));
}

TEST_CASE("a feed-forward block with gelu_tanh runs no pass of its own over activations or biases") {
  in_both_dtypes([](Backend& backend, Backend& reference, DType dtype) {
    const Sizes sizes{19, 40, 11};
    for (const ActivationKind kind : {ActivationKind::gelu_tanh, ActivationKind::gelu}) {
      const bool inside = kind == ActivationKind::gelu_tanh;
      const Block found = feed_forward_of(backend, dtype, sizes, kind);
      check_block(found, feed_forward_of(reference, DType::float64, sizes, kind), dtype);
      CHECK(found.calls("multiply_gelu") == (inside ? 1 : 0));
      CHECK(found.calls("multiply_gelu_gradient") == (inside ? 1 : 0));
      CHECK(found.calls("activation_forward") == (inside ? 0 : 1));
      CHECK(found.calls("activation_backward") == (inside ? 0 : 1));
      CHECK(found.calls("multiply_with_bias_gradient") == (inside ? 2 : 1));
      CHECK(found.calls("column_sum") == 0);
      CHECK(feed_forward_of(backend, dtype, sizes, kind).values == found.values);
    }
    // Rows that the library does not take go the separate way.
    const Sizes narrow{19, 41, 11};
    const Block found = feed_forward_of(backend, dtype, narrow, ActivationKind::gelu_tanh);
    check_block(found, feed_forward_of(reference, DType::float64, narrow, ActivationKind::gelu_tanh), dtype);
    CHECK(found.calls("multiply_gelu") == 0);
    CHECK(found.calls("activation_forward") == 1);
  });
}

// With CUDA_ON_HOST_FAIL=epilogue=192,epilogue=512: a library without DGELU and BGRADB.
TEST_CASE("epilogues that the library does not know are left to separate kernels", "[.refused]") {
  in_both_dtypes([](Backend& backend, Backend& reference, DType dtype) {
    const Sizes sizes{19, 40, 11};
    const Block found = feed_forward_of(backend, dtype, sizes, ActivationKind::gelu_tanh);
    check_block(found, feed_forward_of(reference, DType::float64, sizes, ActivationKind::gelu_tanh), dtype);
    CHECK(found.calls("multiply_gelu") == 1);
    CHECK(found.calls("multiply_gelu_gradient") == 0);
    CHECK(found.calls("activation_backward") == 1);
    CHECK(found.calls("multiply_with_bias_gradient") == 0);
    CHECK(found.calls("column_sum") == 2);
  });
}
