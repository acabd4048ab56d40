// Single steps of decoding against the time that reading all weights once takes, the bound on any of them.
#include <algorithm>

#include "dmuon/config/configuration.h"
#include "dmuon/core/error.h"
#include "dmuon/train/generator.h"
#include "sign_kernels.h"
#include "support.h"
#include "train/decoder.h"
#include "train/run.h"

namespace dmuon::bench {
namespace {

// What a step must read: every matrix, and the head, which a tied model shares with its embedding.
std::vector<Tensor> weights_of(const Model& model) {
  std::vector<Tensor> weights;
  bool untied = false;
  for (const ParameterDeclaration& parameter : model.inventory().parameters()) untied |= parameter.role == ParameterRole::head;
  for (const ParameterDeclaration& parameter : model.inventory().parameters()) {
    const bool head = parameter.role == ParameterRole::head || (!untied && parameter.name == "embedding.token.weight");
    if (head || parameter.role == ParameterRole::matrix) weights.push_back(parameter.state->value);
  }
  return weights;
}

std::unique_ptr<Model> random_model(Backend& backend, const std::string& config) {
  std::unique_ptr<Model> model = make_model(load_configuration(config), {}, models()).model;
  for (const ParameterDeclaration& parameter : model->inventory().parameters())
    parameter.state->value = random_tensor(backend, parameter.shape, 0.02);
  return model;
}

// Texts of different lengths, each read already. Their mean length is about the same for every even number of texts.
class Decoding {
 public:
  Decoding(Backend& backend, Model& model, int64_t texts)
      : classes_(static_cast<size_t>(model.facts().vocabulary_size)),
        capacity_(std::min<int64_t>(model.facts().context_length, 1024)),
        decoder_(backend, model, capacity_, true) {
    constexpr int64_t parts[] = {8, 9, 4, 13, 1, 16, 6, 11, 2, 15, 3, 14, 5, 12, 7, 10};
    const int64_t longest = std::min<int64_t>(256, capacity_ / 2);
    prompt_.resize(static_cast<size_t>(longest));
    for (size_t i = 0; i < prompt_.size(); ++i) prompt_[i] = static_cast<int32_t>(i % classes_);
    for (int64_t text = 0; text < texts; ++text)
      prompts_.push_back(std::span(prompt_).first(static_cast<size_t>(std::max<int64_t>(1, longest * parts[text % 16] / 16))));
    decoder_.read(prompts_);
  }

  // One token more for every text, the most likely one.
  void step() {
    for (size_t text = 0; text < prompts_.size(); ++text)
      if (decoder_.length(text) == capacity_) return decoder_.read(prompts_);
    GenerationOptions greedy;
    greedy.temperature = 0.0;
    std::vector<int32_t> next;
    for (size_t text = 0; text < prompts_.size(); ++text) next.push_back(sample_token(decoder_.logits(text).first(classes_), greedy, 0));
    decoder_.append(next);
  }

 private:
  size_t classes_;
  int64_t capacity_;
  std::vector<int32_t> prompt_;
  std::vector<std::span<const int32_t>> prompts_;
  Decoder decoder_;
};

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("decode needs --config FILE, e.g. configs/bench_gpt_24x1024.json");
  const auto texts = arguments.own.find("texts");
  std::vector<int64_t> counts{1, 2, 4, 8, 16};
  if (texts != arguments.own.end()) counts = {static_cast<int64_t>(number_option("texts", texts->second, 1, 64))};
  const std::unique_ptr<Backend> backend = make_backend(arguments);
  const std::unique_ptr<Model> model = random_model(*backend, config->second);
  const std::vector<Tensor> weights = weights_of(*model);
  double bytes = 0;
  for (const Tensor& weight : weights) bytes += static_cast<double>(weight.bytes());
  volatile uint64_t sink = 0;
  const auto read_weights = [&] {
    for (const Tensor& weight : weights)
      sink = sink | read_all(static_cast<const uint64_t*>(weight.raw()), weight.bytes() / 8, arguments.threads);
  };
  Decoding single(*backend, *model, 1);
  Json::Array rows;
  for (const int64_t count : counts) {
    Decoding decoding(*backend, *model, count);
    const auto step = [&] { decoding.step(); };
    const Comparison bound = compare(arguments, read_weights, step), alone = compare(
                                                                         arguments, [&] { single.step(); }, step);
    Json row = Json::object();
    row.set("texts", count);
    row.set("weight_gigabytes", bytes / 1e9);
    row.set("read_gigabytes_per_second", bytes / bound.a_seconds / 1e9);
    row.set("milliseconds", bound.b_seconds * 1e3);
    row.set("tokens_per_second", static_cast<double>(count) / bound.b_seconds);
    row.set("share_of_bound", bound.ratio.median);
    row.set("share_lower_quartile", bound.ratio.lower_quartile);
    row.set("share_upper_quartile", bound.ratio.upper_quartile);
    row.set("times_one_text", static_cast<double>(count) * alone.ratio.median);
    row.set("times_lower_quartile", static_cast<double>(count) * alone.ratio.lower_quartile);
    row.set("times_upper_quartile", static_cast<double>(count) * alone.ratio.upper_quartile);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

Benchmark decode_benchmark() {
  return {"decode",
          "Steps of decoding texts of different lengths together, against one text and the time that reading all weights once takes",
          {{"config", "Configuration of the model"}, {"texts", "Texts decoded together; default 1, 2, 4, 8 and 16 in turn"}},
          run};
}

}  // namespace dmuon::bench
