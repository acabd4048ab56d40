#include "dmuon/train/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {

int32_t sample_token(std::span<const float> logits, const GenerationOptions& options, uint64_t draw) {
  for (float logit : logits)
    if (std::isnan(logit)) throw NumericalError("a logit is not a number: the model's weights have left the range of float32");
  const auto most_likely = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0.0) return static_cast<int32_t>(most_likely - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  if (options.top_p < 1.0)
    std::sort(order.begin(), order.end(), more_likely);
  else
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), more_likely);
  std::vector<double> weights(kept);
  double sum = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    weights[i] =
        std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - static_cast<double>(*most_likely)) / options.temperature);
    sum += weights[i];
  }
  if (options.top_p < 1.0) {
    double mass = 0.0;
    size_t needed = 0;
    while (needed < kept && mass < options.top_p * sum) mass += weights[needed++];
    kept = std::max<size_t>(needed, 1);
    sum = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  }
  double left = Random(options.seed, RandomStream::sampling, options.sequence).uniform(draw) * sum;
  for (size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0.0) return order[i];
  }
  return order[kept - 1];
}

std::vector<int32_t> generate(Backend& backend, Model& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token) {
  const ModelFacts facts = model.facts();
  const int64_t classes = options.classes > 0 ? std::min(options.classes, facts.vocabulary_size) : facts.vocabulary_size;
  if (prompt.empty()) throw DataError("an empty prompt: give at least one token to start from");
  for (int32_t id : prompt)
    if (id < 0 || id >= facts.vocabulary_size)
      throw DataError(text("prompt token ", id, " is outside the model's vocabulary of ", facts.vocabulary_size));
  ExecutionContext context{backend, backend.compute_stream()};
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  const int64_t capacity = facts.context_length;
  ModelCache cache = model.make_cache(backend, 1, capacity);
  std::vector<int32_t> pending(tokens.end() - std::min<std::ptrdiff_t>(capacity, static_cast<std::ptrdiff_t>(tokens.size())), tokens.end());
  int64_t filled = 0;
  std::vector<int32_t> out;
  std::vector<float> logits;
  for (int64_t step = 0; step < options.tokens; ++step) {
    if (filled + static_cast<int64_t>(pending.size()) > capacity) {
      const int64_t keep = std::max<int64_t>(1, capacity / 2);
      pending.assign(tokens.end() - keep, tokens.end());
      for (AttentionCache& layer : cache.layers) layer.length = 0;
      filled = 0;
    }
    const auto count = static_cast<int64_t>(pending.size());
    std::vector<int32_t> positions(pending.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(filled));
    Tensor token_tensor = backend.allocate(Shape{1, count}, DType::int32, MemoryCategory::data, "tokens");
    Tensor position_tensor = backend.allocate(Shape{1, count}, DType::int32, MemoryCategory::data, "positions");
    backend.copy_from_host(context.stream, pending.data(), token_tensor);
    backend.copy_from_host(context.stream, positions.data(), position_tensor);
    Tensor result = model.forward(context, token_tensor, position_tensor, &cache, true).value();
    if (result.dtype() != DType::float32) {
      const Tensor wide = backend.allocate(result.shape(), DType::float32, MemoryCategory::activations, "logits");
      backend.copy(context.stream, result, wide);
      result = wide;
    }
    filled += count;
    logits.resize(static_cast<size_t>(result.elements()));
    backend.copy_to_host(context.stream, result, logits.data());
    const int32_t next = sample_token(std::span(logits).first(static_cast<size_t>(classes)), options, static_cast<uint64_t>(step));
    tokens.push_back(next);
    out.push_back(next);
    pending.assign(1, next);
    if (on_token) on_token(next);
  }
  return out;
}

}  // namespace dmuon
