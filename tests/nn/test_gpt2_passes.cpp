// What must not depend on how a pass is run: recomputation, recording, caching, splitting, streams, shape-only.
#include "nn/tiny_model.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Matchers::Contains;

namespace {

const Json dropped = with(tiny_settings(), {{"dropout", 0.25}, {"layers", 3}});

Values pass(const Json& settings, HostMode mode, uint64_t seed, bool recompute, std::vector<double>* losses = nullptr) {
  const auto backend = reference_backend(mode, seed);
  Instance instance(*backend, settings);
  instance.model->set_recompute(recompute);
  const std::vector<double> found = run(instance, random_batch(2, 6, 11), true, 0.5);
  if (losses) *losses = found;
  return instance.gradients();
}

std::vector<double> logits_of(Instance& instance, const Tensor& tokens, const Tensor& positions, bool training, ModelCache* cache = nullptr,
                              bool last_only = false) {
  ExecutionContext context = make_context(instance.backend, nullptr, tokens.size(0));
  context.training = training;
  return to_doubles(instance.backend, instance.model->forward(context, tokens, positions, cache, last_only).value());
}

}  // namespace

TEST_CASE("recomputation gives the same bits") {
  for (const Json& settings : {dropped, with(dropped, {{"tied_head", false}, {"normalization", "rms_norm"}, {"bias", false}})}) {
    std::vector<double> plain_losses, losses;
    const Values plain = pass(settings, HostMode::normal, 1, false, &plain_losses);
    const Values again = pass(settings, HostMode::normal, 1, true, &losses);
    CHECK(losses == plain_losses);
    CHECK(again == plain);
  }
}

TEST_CASE("guarded and deferred doubles give the same bits") {
  const Values plain = pass(dropped, HostMode::normal, 1, false);
  CHECK(pass(dropped, HostMode::guarded, 1, false) == plain);
  CHECK(pass(dropped, HostMode::guarded, 1, true) == plain);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CHECK(pass(dropped, HostMode::deferred, seed, false) == plain);
    CHECK(pass(dropped, HostMode::deferred, seed, true) == plain);
  }
}

TEST_CASE("two micro-batches accumulate to one batch") {
  const auto backend = reference_backend();
  const Batch batch = random_batch(3, 5, 11);
  for (const DType dtype : {DType::float64, DType::float32}) {
    Instance instance(*backend, dropped, dtype);
    const std::vector<double> whole_losses = run(instance, batch, true, 0.1);
    const Values whole = instance.gradients();
    instance.clear_gradients();
    std::vector<double> losses = run(instance, slice(batch, 0, 2), true, 0.1);
    const std::vector<double> second = run(instance, slice(batch, 2, 1), true, 0.1);
    losses.insert(losses.end(), second.begin(), second.end());
    CHECK(losses == whole_losses);  // dropout counts sequences globally
    const double tolerance = dtype == DType::float64 ? 1e-12 : 1e-6;
    for (const auto& [name, gradient] : instance.gradients()) {
      INFO(name);
      // The true gradient of key biases is zero: adding a constant to all scores changes no probability.
      if (name.find("key.bias") != std::string::npos) {
        for (double value : gradient) CHECK(std::abs(value) < tolerance);
      } else {
        CHECK(relative_difference(gradient, whole.at(name)) < tolerance);
      }
    }
  }
}

TEST_CASE("without a tape the same losses come out") {
  const auto backend = reference_backend();
  Instance instance(*backend, dropped);
  const Batch batch = random_batch(2, 6, 11);
  CHECK(run(instance, batch, true) == run(instance, batch, false));
  const std::vector<double> evaluation = run(instance, batch, false, 1.0, false);
  CHECK(evaluation == run(instance, batch, true, 1.0, false));
  CHECK(evaluation != run(instance, batch, true));  // dropout acts in training only
}

TEST_CASE("generation with a cache equals the full forward") {
  const auto backend = reference_backend();
  for (const DType dtype : {DType::float64, DType::float32}) {
    Instance instance(*backend, dropped, dtype);
    const int64_t batch = 3, length = 7, columns = 11;
    const Batch data = random_batch(batch, length, columns);
    const std::vector<double> full =
        logits_of(instance, index_tensor(*backend, Shape{batch, length}, data.tokens), positions_of(*backend, batch, 0, length), false);
    ModelCache cache = instance.model->make_cache(*backend, batch, length);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 2}, {6, 1}}) {
      std::vector<int32_t> tokens;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < count; ++t) tokens.push_back(data.tokens[static_cast<size_t>(b * length + first + t)]);
      const bool last_only = first == 4;
      const std::vector<double> part = logits_of(instance, index_tensor(*backend, Shape{batch, count}, tokens),
                                                 positions_of(*backend, batch, first, count), false, &cache, last_only);
      std::vector<double> expected;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = last_only ? count - 1 : 0; t < count; ++t)
          for (int64_t j = 0; j < columns; ++j) expected.push_back(full[static_cast<size_t>((b * length + first + t) * columns + j)]);
      REQUIRE(part.size() == expected.size());
      CHECK(relative_difference(part, expected) < (dtype == DType::float64 ? 1e-12 : 1e-6));
    }
    CHECK(cache.layers[0].lengths == std::vector<int64_t>(static_cast<size_t>(batch), length));
  }
}

TEST_CASE("a pass leaves no activation behind") {
  const auto backend = reference_backend();
  Instance instance(*backend, dropped);
  const int64_t before = backend->allocator().statistics()[MemoryCategory::activations].current;
  CHECK(before == 0);
  for (const bool recompute : {false, true}) {
    instance.model->set_recompute(recompute);
    run(instance, random_batch(2, 6, 11), true);
    CHECK(backend->allocator().statistics()[MemoryCategory::activations].current == 0);
  }
  run(instance, random_batch(2, 6, 11), false);
  CHECK(backend->allocator().statistics()[MemoryCategory::activations].current == 0);
}

namespace {

struct Footprint {
  MemoryStatistics statistics;
  double matrix_flops = 0;
};

// Forward and backward of the 124M model with B = 1, T = 256 in a few milliseconds and no memory.
Footprint shape_only_pass(bool recompute, bool record) {
  BackendOptions options;
  options.mode = HostMode::shape_only;
  const auto backend = open_backend_plugin(dmuon::testing::reference_plugin(), options);
  const auto model = make_model(parse_json(R"({"family": "gpt2"})", "124M"));
  model->set_recompute(recompute);
  for (const ParameterDeclaration& parameter : model->inventory().parameters())
    parameter.state->value = backend->allocate(parameter.shape, DType::float32, MemoryCategory::parameters, parameter.name);
  Tape tape;
  ExecutionContext context = make_context(*backend, record ? &tape : nullptr, 1);
  const Tensor indices = backend->allocate(Shape{1, 256}, DType::int32, MemoryCategory::data, "tokens");
  backend->reset_costs();
  {
    Variable losses = softmax_cross_entropy(context, model->forward(context, indices, indices), indices, 50257, 1.0);
    losses = {};
    tape.backward(context);
  }
  Footprint footprint{backend->allocator().statistics(), 0};
  for (const auto& [name, cost] : backend->costs()) footprint.matrix_flops += cost.flops;
  return footprint;
}

}  // namespace

TEST_CASE("a shape-only pass gives bytes by category and FLOPs") {
  const Footprint plain = shape_only_pass(false, true), recomputed = shape_only_pass(true, true), evaluated = shape_only_pass(false, false);
  const int64_t parameters = 124'439'808 * 4;
  CHECK(plain.statistics[MemoryCategory::parameters].current == parameters);
  CHECK(plain.statistics[MemoryCategory::gradients].current == parameters);
  CHECK(plain.statistics[MemoryCategory::activations].current == 0);
  // Kept per token and block: input and output of both norms, q, k, v, attended (8 widths), hidden before and after the
  // activation (8 widths); the logits, replaced by their gradient; then a few transient tensors and statistics.
  const int64_t token = 256 * 4;
  const int64_t kept = token * (12 * 16 * 768 + 2 * 768 + 50257);
  CHECK(plain.statistics[MemoryCategory::activations].peak >= kept);
  CHECK(plain.statistics[MemoryCategory::activations].peak <= kept + token * (3 * 768 + 12 * 16 + 2 * 25));
  // Recomputation keeps the residual sum and the branch of every block.
  CHECK(recomputed.statistics[MemoryCategory::activations].peak < kept / 2);
  CHECK(evaluated.statistics[MemoryCategory::activations].peak <= token * (50257 + 4 * 768));
  const auto model = make_model(parse_json(R"({"family": "gpt2"})", "124M"));
  CHECK(plain.matrix_flops == Approx(256 * model->facts().flops_per_token(256)).epsilon(0.01));
  CHECK(recomputed.matrix_flops > 1.15 * plain.matrix_flops);
}

TEST_CASE("inputs that do not fit the model are named") {
  const auto backend = reference_backend();
  Instance instance(*backend, tiny_settings());
  ExecutionContext context = make_context(*backend, nullptr, 2);
  const Tensor tokens = index_tensor(*backend, Shape{2, 3}, {0, 1, 2, 3, 4, 5});
  const auto forward = [&](const Tensor& t, const Tensor& p, ModelCache* cache = nullptr, bool last_only = false) {
    return instance.model->forward(context, t, p, cache, last_only);
  };
  CHECK_THROWS_WITH(forward(tokens, positions_of(*backend, 3, 0, 2)), Contains("int32[3, 2]"));
  const Tensor eight = positions_of(*backend, 1, 0, 8);
  CHECK_THROWS_WITH(forward(eight, eight), Contains("8 positions exceed model.context_length = 7"));
  ModelCache cache = instance.model->make_cache(*backend, 2, 5);
  for (AttentionCache& layer : cache.layers) layer.lengths = {3, 5};  // the longest counts
  CHECK_THROWS_WITH(forward(tokens, positions_of(*backend, 2, 5, 3), &cache), Contains("8 positions"));
  ModelCache other;
  CHECK_THROWS_WITH(forward(tokens, positions_of(*backend, 2, 0, 3), &other), Contains("0 layers, the model 2"));
  Tape tape;
  context.tape = &tape;
  CHECK_THROWS_WITH(forward(tokens, positions_of(*backend, 2, 0, 3), nullptr, true), Contains("generation"));
}

TEST_CASE("settings that do not fit are named") {
  const auto make = [](std::initializer_list<std::pair<const char*, Json>> changes) { return make_model(with(tiny_settings(), changes)); };
  CHECK_THROWS_AS(make({{"heads", 4}}), ConfigError);
  CHECK_THROWS_WITH(make({{"heads", 4}}), Contains("model.heads = 4") && Contains("model.width = 6"));
  CHECK_THROWS_WITH(make({{"vocabulary_size", 0}}), Contains("model.vocabulary_size"));
  CHECK_THROWS_WITH(make({{"layers", -1}}), Contains("model.layers"));
  CHECK_THROWS_WITH(make({{"dropout", 1.0}}), Contains("model.dropout"));
  CHECK_THROWS_WITH(make({{"activation", "swish"}}), Contains("relu_squared") && Contains("swish"));
  CHECK_THROWS_WITH(make({{"normalization", "batch"}}), Contains("rms_norm") && Contains("batch"));
}
