// Single steps of decoding against the time that reading all weights once takes, the bound on any of them.
#include <numeric>

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

class Decoding {
 public:
  Decoding(const Arguments& arguments, const std::string& config, int64_t texts)
      : threads_(arguments.threads), backend_(make_backend(arguments)), model_(make_model(load_configuration(config), {}, models()).model) {
    for (const ParameterDeclaration& parameter : model_->inventory().parameters())
      parameter.state->value = random_tensor(*backend_, parameter.shape, 0.02);
    weights_ = weights_of(*model_);
    for (const Tensor& weight : weights_) bytes_ += weight.bytes();
    capacity_ = std::min<int64_t>(model_->facts().context_length, 1024);
    prompt_.resize(static_cast<size_t>(std::min<int64_t>(128, capacity_ / 2)));
    std::iota(prompt_.begin(), prompt_.end(), 0);
    decoder_ = std::make_unique<Decoder>(*backend_, *model_, capacity_, true);
    prompts_.assign(static_cast<size_t>(texts), prompt_);
    decoder_->read(prompts_);
  }

  // One token more for every text, the most likely one.
  void step() {
    if (decoder_->length(0) == capacity_) decoder_->read(prompts_);
    GenerationOptions greedy;
    greedy.temperature = 0.0;
    std::vector<int32_t> next;
    const auto classes = static_cast<size_t>(model_->facts().vocabulary_size);
    for (size_t text = 0; text < prompts_.size(); ++text) next.push_back(sample_token(decoder_->logits(text).first(classes), greedy, 0));
    decoder_->append(next);
  }
  void read_weights() {
    for (const Tensor& weight : weights_)
      sink_ = sink_ | read_all(static_cast<const uint64_t*>(weight.raw()), weight.bytes() / 8, threads_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  int threads_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<Tensor> weights_;
  int64_t bytes_ = 0, capacity_ = 0;
  std::vector<int32_t> prompt_;
  std::vector<std::span<const int32_t>> prompts_;
  std::unique_ptr<Decoder> decoder_;
  volatile uint64_t sink_ = 0;
};

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("decode needs --config FILE, e.g. configs/bench_gpt_24x1024.json");
  const auto texts = arguments.own.find("texts");
  const auto count = texts == arguments.own.end() ? int64_t{1} : static_cast<int64_t>(number_option("texts", texts->second, 1, 64));
  Decoding decoding(arguments, config->second, count);
  const Comparison result = compare(
      arguments, [&] { decoding.read_weights(); }, [&] { decoding.step(); });
  const auto bytes = static_cast<double>(decoding.bytes());
  Json row = Json::object();
  row.set("texts", count);
  row.set("weight_gigabytes", bytes / 1e9);
  row.set("milliseconds", result.b_seconds * 1e3);
  row.set("tokens_per_second", static_cast<double>(count) / result.b_seconds);
  row.set("gigabytes_per_second", bytes / result.b_seconds / 1e9);
  row.set("read_gigabytes_per_second", bytes / result.a_seconds / 1e9);
  row.set("share_of_bound", result.ratio.median);
  row.set("lower_quartile", result.ratio.lower_quartile);
  row.set("upper_quartile", result.ratio.upper_quartile);
  return {row};
}

}  // namespace

Benchmark decode_benchmark() {
  return {"decode",
          "Steps of decoding against the time that reading all weights once takes",
          {{"config", "Configuration of the model"}, {"texts", "Texts decoded together; default 1"}},
          run};
}

}  // namespace dmuon::bench
