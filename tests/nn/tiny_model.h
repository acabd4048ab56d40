// A model in memory of its own, without units: what layer `shard` does for real runs.
#pragma once

#include <limits>
#include <map>
#include <optional>

#include "autograd/gradient_check.h"
#include "dmuon/nn/model.h"

namespace dmuon::test {

inline Json tiny_settings() {
  return parse_json(R"({"family": "gpt2", "layers": 2, "heads": 2, "width": 6, "context_length": 7, "vocabulary_size": 11,
                        "activation": "gelu_tanh", "initializer_deviation": 0.3})",
                    "tiny");
}

inline Json with(Json settings, std::initializer_list<std::pair<const char*, Json>> changes) {
  for (const auto& [key, value] : changes) settings.set(key, value);
  return settings;
}

inline std::unique_ptr<Model> make_model(const Json& settings) {
  for (const ModelFamily& family : models())
    if (family.name == settings.at("family").as_string()) return family.make(settings);
  throw ConfigError("no such family");
}

using Values = std::map<std::string, std::vector<double>>;

// A model whose parameters and gradients have memory of their own. Gradients start as NaN, to prove that nothing is
// accumulated into memory that was never written.
struct Instance {
  Backend& backend;
  std::unique_ptr<Model> model;
  DType dtype;
  bool norm_noise;

  Instance(Backend& b, const Json& settings, DType d = DType::float64, bool noise = true)
      : backend(b), model(make_model(settings)), dtype(d), norm_noise(noise) {
    for (const ParameterDeclaration& parameter : model->inventory().parameters()) {
      std::vector<float> initial(static_cast<size_t>(parameter.shape.elements()));
      fill_initial(parameter, 3, 0, parameter.shape.elements(), initial.data());
      std::vector<double> values(initial.begin(), initial.end());
      if (noise && parameter.role == ParameterRole::vector) {
        const std::vector<double> random = random_values(parameter.shape.elements(), hash_name(parameter.name), 0.1);
        for (size_t i = 0; i < values.size(); ++i) values[i] += random[i];
      }
      ParameterState& state = *parameter.state;
      state.value = backend.allocate(parameter.shape, dtype, MemoryCategory::parameters, parameter.name);
      from_doubles(backend, values, state.value);
      state.gradient->tensor =
          backend.allocate(parameter.shape, dtype == DType::float64 ? dtype : DType::float32, MemoryCategory::gradients, parameter.name);
    }
    clear_gradients();
  }

  void clear_gradients() {
    for (const ParameterDeclaration& parameter : model->inventory().parameters()) {
      from_doubles(backend, std::vector<double>(static_cast<size_t>(parameter.shape.elements()), std::numeric_limits<double>::quiet_NaN()),
                   parameter.state->gradient->tensor);
      parameter.state->gradient->defined = false;
    }
  }

  Values gradients() const {
    Values result;
    for (const ParameterDeclaration& parameter : model->inventory().parameters())
      result[parameter.name] = to_doubles(backend, parameter.state->gradient->tensor);
    return result;
  }
};

struct Batch {
  int64_t batch, length;
  std::vector<int32_t> tokens, targets;
  int64_t first_sequence = 5;
};

inline Batch random_batch(int64_t batch, int64_t length, int64_t vocabulary, uint64_t salt = 1) {
  Batch result{batch, length, {}, {}};
  const Random random(11, RandomStream::test, salt);
  for (int64_t i = 0; i < batch * length; ++i) {
    result.tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary), static_cast<uint64_t>(2 * i))));
    result.targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary), static_cast<uint64_t>(2 * i + 1))));
  }
  return result;
}

inline Batch slice(const Batch& whole, int64_t first, int64_t count) {
  Batch part{count, whole.length, {}, {}, whole.first_sequence + first};
  const auto copy = [&](const std::vector<int32_t>& from) {
    return std::vector<int32_t>(from.begin() + first * whole.length, from.begin() + (first + count) * whole.length);
  };
  part.tokens = copy(whole.tokens);
  part.targets = copy(whole.targets);
  return part;
}

inline Tensor positions_of(Backend& backend, int64_t batch, int64_t first, int64_t length) {
  std::vector<int32_t> positions;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < length; ++t) positions.push_back(static_cast<int32_t>(first + t));
  return index_tensor(backend, Shape{batch, length}, positions);
}

// Losses of a batch; with a tape also the backward of scale * sum(losses), accumulated.
inline std::vector<double> run(Instance& instance, const Batch& batch, bool record, double scale = 1.0, bool training = true) {
  Backend& backend = instance.backend;
  Tape tape;
  ExecutionContext context = make_context(backend, record ? &tape : nullptr, batch.batch);
  context.first_sequence = batch.first_sequence;
  context.training = training;
  const Shape shape{batch.batch, batch.length};
  Variable losses;
  {
    Variable logits =
        instance.model->forward(context, index_tensor(backend, shape, batch.tokens), positions_of(backend, batch.batch, 0, batch.length));
    losses = softmax_cross_entropy(context, std::move(logits), index_tensor(backend, shape, batch.targets),
                                   instance.model->facts().vocabulary_size, scale);
  }
  tape.backward(context);
  CHECK(tape.empty());
  return to_doubles(backend, losses.value());
}

inline double sum(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

// ||a - b|| / ||b||
inline double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
}

}  // namespace dmuon::test
