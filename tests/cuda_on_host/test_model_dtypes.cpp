// The model's kernels in both dtypes, wherever tensors begin in memory: within the error of the dtype, and with the same bits
// whether 16-byte accesses are possible or not.
#include "cuda_on_host/model_case.h"
#include "dmuon/core/error.h"

using namespace dmuon;
using namespace model_case;

namespace {

// run(case) with both dtypes; per dtype at a start that allows 16-byte accesses and at one that does not.
template <class Run>
void in_both_dtypes(const Run& run) {
  const auto reference = kernel_suite::open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    ModelCase aligned(*backend, *reference, dtype), shifted(*backend, *reference, dtype, 3);
    run(aligned);
    run(shifted);
    INFO(name_of(dtype));
    CHECK(aligned.outputs() == shifted.outputs());
  }
}

DropoutMask mask_of(double probability, int64_t sequences) {
  return {.probability = probability, .seed = 99, .first_sequence = 3, .sequences = sequences};
}

void normalization(ModelCase& c, NormalizationKind kind, int64_t rows, int64_t columns, double dropout) {
  const Shape shape{rows, columns}, row{columns};
  const Pair input = c.normal(shape), branch = c.normal(shape), branch_bias = c.normal(row), residual = c.output(shape);
  const Pair weight = c.normal(row), bias = c.normal(row), output = c.output(shape);
  const Pair mean = c.float_output({rows}), inverse_deviation = c.float_output({rows});
  const Pair d_output = c.normal(shape), d_residual = c.normal(shape), d_input = c.output(shape), d_branch = c.output(shape);
  const Pair d_weight = c.float_output(row), d_bias = c.float_output(row), d_branch_bias = c.float_output(row);
  c.on_both([&](Backend& backend, auto pick) {
    NormalizationForward f;
    f.kind = kind;
    f.input = pick(input), f.branch = pick(branch), f.branch_bias = pick(branch_bias), f.residual = pick(residual);
    f.weight = pick(weight), f.bias = pick(bias), f.output = pick(output);
    f.mean = pick(mean), f.inverse_deviation = pick(inverse_deviation);
    f.dropout = mask_of(dropout, rows);
    backend.normalization().forward(backend.compute_stream(), f);
    NormalizationBackward b;
    b.kind = kind;
    b.d_output = pick(d_output), b.d_residual = pick(d_residual), b.normalized_input = pick(residual);
    b.mean = f.mean, b.inverse_deviation = f.inverse_deviation, b.weight = f.weight, b.dropout = f.dropout;
    b.d_input = pick(d_input), b.d_branch = pick(d_branch), b.d_branch_bias = pick(d_branch_bias);
    b.d_weight = pick(d_weight), b.d_bias = pick(d_bias);
    backend.normalization().backward(backend.compute_stream(), b);
  });
  const std::string name = text("normalization of ", rows, "x", columns, " ");
  c.check(name + "residual", residual);
  c.check(name + "output", output);
  c.check(name + "inverse_deviation", inverse_deviation);
  c.check(name + "d_input", d_input);
  c.check(name + "d_branch", d_branch);
  c.check(name + "d_weight", d_weight);
  c.check(name + "d_bias", d_bias);
  c.check(name + "d_branch_bias", d_branch_bias);
}

void activation(ModelCase& c, ActivationKind kind, int64_t rows, int64_t columns) {
  const Shape shape{rows, columns};
  const Pair input = c.normal(shape, 2.0), bias = c.normal({columns}), output = c.output(shape);
  const Pair d_output = c.normal(shape), d_input = c.output(shape), d_bias = c.float_output({columns});
  const Pair dropped = c.output(shape), scaled = c.output(shape), added = c.normal(shape);
  c.on_both([&](Backend& backend, auto pick) {
    ActivationKernels& kernels = backend.activation();
    Stream& stream = backend.compute_stream();
    ActivationForward f;
    f.kind = kind, f.input = pick(input), f.bias = pick(bias), f.output = pick(output);
    kernels.forward(stream, f);
    ActivationBackward b;
    b.kind = kind, b.input = pick(input), b.bias = pick(bias), b.d_output = pick(d_output);
    b.d_input = pick(d_input), b.d_bias = pick(d_bias);
    kernels.backward(stream, b);
    kernels.dropout(stream, {.in = pick(input), .out = pick(dropped), .mask = mask_of(0.3, rows)});
    kernels.scaled_add(stream, {.x = pick(input), .y = pick(scaled), .alpha = -0.7, .accumulate = false});
    kernels.scaled_add(stream, {.x = pick(input), .y = pick(added), .alpha = 0.3});
  });
  const std::string name = text("activation of ", rows, "x", columns, " ");
  c.check(name + "output", output);
  c.check(name + "d_input", d_input);
  c.check(name + "d_bias", d_bias);
  c.check(name + "dropout", dropped);
  c.check(name + "scaled", scaled);
  c.check(name + "added", added);
}

void embedding(ModelCase& c, int64_t batch, int64_t length, int64_t columns, int64_t vocabulary) {
  std::vector<double> token_list, position_list;
  for (int64_t n = 0; n < batch * length; ++n) {
    token_list.push_back(static_cast<double>(n % 3 == 0 ? 1 : n * n % vocabulary));  // one token is frequent
    position_list.push_back(static_cast<double>(n % length));
  }
  const Pair tokens = c.integers({batch, length}, token_list), positions = c.integers({batch, length}, position_list);
  const Pair token_table = c.normal({vocabulary, columns}), position_table = c.normal({length, columns});
  const Pair output = c.output({batch, length, columns}), d_output = c.normal({batch, length, columns});
  const Pair d_token_table = c.float_output({vocabulary, columns}), d_position_table = c.float_output({length, columns});
  c.on_both([&](Backend& backend, auto pick) {
    EmbeddingForward f;
    f.tokens = pick(tokens), f.positions = pick(positions);
    f.token_table = pick(token_table), f.position_table = pick(position_table), f.output = pick(output);
    f.dropout = mask_of(0.2, batch);
    backend.embedding_loss().embedding_forward(backend.compute_stream(), f);
    EmbeddingBackward b;
    b.tokens = f.tokens, b.positions = f.positions, b.dropout = f.dropout, b.d_output = pick(d_output);
    b.d_token_table = pick(d_token_table), b.d_position_table = pick(d_position_table);
    backend.embedding_loss().embedding_backward(backend.compute_stream(), b);
  });
  const std::string name = text("embedding of ", batch, "x", length, "x", columns, " ");
  c.check(name + "output", output);
  c.check(name + "d_token_table", d_token_table);
  c.check(name + "d_position_table", d_position_table);
}

void loss(ModelCase& c, int64_t rows, int64_t columns, int64_t classes) {
  std::vector<double> target_list;
  for (int64_t n = 0; n < rows; ++n) target_list.push_back(static_cast<double>(n % 4 == 3 ? -1 : n * 7 % classes));
  const Pair targets = c.integers({rows}, target_list), logits = c.normal({rows, columns}, 3.0), losses = c.float_output({rows});
  c.on_both([&](Backend& backend, auto pick) {
    SoftmaxCrossEntropy s;
    s.logits = pick(logits), s.targets = pick(targets), s.losses = pick(losses);
    s.classes = classes, s.write_gradient = true, s.gradient_scale = 0.25;
    backend.embedding_loss().softmax_cross_entropy(backend.compute_stream(), s);
  });
  const std::string name = text("loss of ", rows, "x", columns, " ");
  c.check(name + "losses", losses);
  c.check(name + "gradient", logits);
}

}  // namespace

TEST_CASE("normalisation in float32 and bfloat16, aligned or not") {
  in_both_dtypes([](ModelCase& c) {
    for (NormalizationKind kind : {NormalizationKind::layer_norm, NormalizationKind::rms_norm}) {
      normalization(c, kind, 5, 7, 0.3);
      normalization(c, kind, 37, 64, 0.0);
      normalization(c, kind, 6, 1032, 0.3);
      normalization(c, kind, 6, 1024, 0.3);  // the sums of its teams take 48 KiB to the byte, beside variables
    }
  });
}

TEST_CASE("a row too long for shared memory is normalised all the same") {
  const auto reference = kernel_suite::open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  ModelCase aligned(*backend, *reference, DType::bfloat16);
  normalization(aligned, NormalizationKind::layer_norm, 2, 24584, 0.0);
}

TEST_CASE("activations in float32 and bfloat16, aligned or not") {
  in_both_dtypes([](ModelCase& c) {
    for (ActivationKind kind : {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu_squared}) {
      activation(c, kind, 3, 7);
      activation(c, kind, 35, 72);
      activation(c, kind, 2, 1032);
    }
  });
}

TEST_CASE("far from zero the derivative of gelu_tanh is 0 or 1, and NaN stays NaN") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const std::vector<double> inputs{-INFINITY, -1e30, -1e20, -1e6, -20, 20, 1e6, 1e20, 3e38, INFINITY, NAN};
  const Shape shape{1, static_cast<int64_t>(inputs.size())};
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const auto make = [&](const std::vector<double>& values) {
      const Tensor tensor = backend->allocate(shape, dtype, MemoryCategory::workspace, "a tensor of extremes");
      from_doubles(*backend, values, tensor);
      return tensor;
    };
    ActivationBackward b;
    b.kind = ActivationKind::gelu_tanh;
    b.input = make(inputs), b.d_output = make(std::vector<double>(inputs.size(), 3.0)), b.d_input = make(inputs);
    backend->activation().backward(backend->compute_stream(), b);
    const std::vector<double> found = to_doubles(*backend, b.d_input);
    for (size_t i = 0; i < inputs.size(); ++i) {
      INFO(name_of(dtype) << ", x = " << inputs[i]);
      if (std::isnan(inputs[i]))
        CHECK(std::isnan(found[i]));
      else
        CHECK(found[i] == (inputs[i] > 0 ? 3.0 : 0.0));
    }
  }
}

TEST_CASE("the model is computed in float32 and bfloat16 and nothing else") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int32})
    CHECK(backend->computes_in(dtype) == (dtype == DType::float32 || dtype == DType::bfloat16));
}

TEST_CASE("embedding and loss in float32 and bfloat16, aligned or not") {
  in_both_dtypes([](ModelCase& c) {
    embedding(c, 2, 5, 7, 11);
    embedding(c, 3, 40, 72, 2500);
    embedding(c, 4, 75, 8, 3);  // frequent rows
    loss(c, 9, 7, 7);
    loss(c, 5, 1032, 1029);
  });
}

TEST_CASE("model kernels of no rows do nothing but clear what they overwrite") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const auto tensor = [&](const Shape& shape, DType dtype, double value) {
    const Tensor made = backend->allocate(shape, dtype, MemoryCategory::workspace, "a tensor");
    from_doubles(*backend, std::vector<double>(static_cast<size_t>(shape.elements()), value), made);
    return made;
  };
  const Tensor none = tensor({0, 8}, DType::float32, 0), no_statistics = tensor({0}, DType::float32, 0),
               row = tensor({8}, DType::float32, 1);
  Stream& stream = backend->compute_stream();
  SECTION("normalisation") {
    NormalizationForward f;
    f.input = none, f.weight = row, f.output = none, f.mean = no_statistics, f.inverse_deviation = no_statistics;
    backend->normalization().forward(stream, f);
    NormalizationBackward b;
    const Tensor d_weight = tensor({8}, DType::float32, 5), d_bias = tensor({8}, DType::float32, 5);
    b.d_output = none, b.normalized_input = none, b.mean = no_statistics, b.inverse_deviation = no_statistics, b.weight = row;
    b.d_input = none, b.d_weight = d_weight, b.d_bias = d_bias, b.accumulate_bias = true;
    backend->normalization().backward(stream, b);
    CHECK(to_doubles(*backend, d_weight) == std::vector<double>(8, 0.0));
    CHECK(to_doubles(*backend, d_bias) == std::vector<double>(8, 5.0));
  }
  SECTION("activation") {
    const Tensor d_bias = tensor({8}, DType::float32, 5);
    ActivationBackward b;
    b.input = none, b.d_output = none, b.d_input = none, b.d_bias = d_bias;
    backend->activation().backward(stream, b);
    CHECK(to_doubles(*backend, d_bias) == std::vector<double>(8, 0.0));
    ActivationForward f;
    f.input = none, f.output = none;
    backend->activation().forward(stream, f);
    backend->activation().dropout(stream, {.in = none, .out = none, .mask = mask_of(0.5, 1)});
    backend->activation().scaled_add(stream, {.x = none, .y = none});
  }
  SECTION("embedding and loss") {
    const Tensor tokens = tensor({0, 4}, DType::int32, 0), output = tensor({0, 4, 8}, DType::float32, 0);
    const Tensor table = tensor({3, 8}, DType::float32, 5);
    EmbeddingBackward b;
    b.tokens = tokens, b.d_output = output, b.d_token_table = table;
    backend->embedding_loss().embedding_backward(stream, b);
    CHECK(to_doubles(*backend, table) == std::vector<double>(24, 0.0));
    SoftmaxCrossEntropy s;
    s.logits = none, s.targets = tensor({0}, DType::int32, 0), s.losses = no_statistics, s.classes = 8;
    backend->embedding_loss().softmax_cross_entropy(stream, s);
  }
}

TEST_CASE("a dtype that no model kernel computes in is refused by name") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const Tensor half = backend->allocate(Shape{2, 8}, DType::float16, MemoryCategory::workspace, "half");
  ActivationForward f;
  f.input = half, f.output = half;
  try {
    backend->activation().forward(backend->compute_stream(), f);
    FAIL("float16 was taken");
  } catch (const DeviceError& error) {
    const std::string message = error.what();
    CHECK(message.find("activation_forward") != std::string::npos);
    CHECK(message.find("float16[2, 8]") != std::string::npos);
  }
}
