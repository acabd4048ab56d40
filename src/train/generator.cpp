#include "dmuon/train/generator.h"

#include <algorithm>
#include <chrono>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/decoder.h"

namespace dmuon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check_prompts(const ModelFacts& facts, std::span<const std::vector<int32_t>> prompts, const GenerationOptions& options) {
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) throw DataError("an empty prompt: give at least one token to start from");
    for (int32_t id : prompt)
      if (id < 0 || id >= facts.vocabulary_size)
        throw DataError(text("prompt token ", id, " is outside the model's vocabulary of ", facts.vocabulary_size));
    const auto length = static_cast<int64_t>(prompt.size());
    if (length > facts.context_length)
      throw DataError(text("the prompt has ", length, " tokens, the model reads at most ", facts.context_length, "; shorten it"));
    if (prompts.size() > 1 && options.tokens > facts.context_length - length)
      throw DataError(text("several texts together must fit into the context: ", length, " tokens of a prompt and ", options.tokens,
                           " new ones exceed ", facts.context_length));
  }
}

// A text of the batch that has not ended.
struct Running {
  size_t prompt;
  std::vector<int32_t> tokens;  // with its prompt
};

int32_t next_token(std::span<float> logits, const Running& text, GenerationOptions options, int64_t step) {
  if (options.classes > 0) logits = logits.first(std::min(logits.size(), static_cast<size_t>(options.classes)));
  apply_repetition_penalty(logits, text.tokens, options.repetition_penalty);
  options.sequence += text.prompt;
  return sample_token(logits, options, static_cast<uint64_t>(step));
}

void read_again(Decoder& decoder, const std::vector<int32_t>& tokens, int64_t capacity) {
  const auto keep = static_cast<size_t>(std::max<int64_t>(1, capacity / 2));
  const std::span<const int32_t> last = std::span(tokens).last(keep);
  decoder.read(std::span(&last, 1));
}

}  // namespace

GenerationResult generate_batch(Backend& backend, Model& model, std::span<const std::vector<int32_t>> prompts,
                                const GenerationOptions& given, const TokenListener& on_token) {
  const ModelFacts facts = model.facts();
  GenerationOptions options = given;
  options.classes = options.classes > 0 ? std::min(options.classes, facts.vocabulary_size) : facts.vocabulary_size;
  check_prompts(facts, prompts, options);
  GenerationResult result;
  result.tokens.resize(prompts.size());
  if (prompts.empty() || options.tokens <= 0) return result;

  int64_t longest = 0;
  std::vector<Running> running;
  std::vector<std::span<const int32_t>> texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    running.push_back({i, prompts[i]});
    texts.emplace_back(prompts[i]);
    longest = std::max(longest, static_cast<int64_t>(prompts[i].size()));
    result.prompt_tokens += static_cast<int64_t>(prompts[i].size());
  }
  const int64_t capacity = options.tokens < facts.context_length - longest ? longest + options.tokens : facts.context_length;
  Decoder decoder(backend, model, capacity, options.cache);
  const Clock::time_point start = Clock::now();
  decoder.read(texts);
  result.prompt_seconds = seconds_since(start);

  for (int64_t step = 0;; ++step) {
    std::vector<int32_t> next;
    for (size_t row = 0; row < running.size();) {
      Running& text = running[row];
      const int32_t id = next_token(decoder.logits(row), text, options, step);
      text.tokens.push_back(id);
      result.tokens[text.prompt].push_back(id);
      result.generated_tokens += step > 0;
      const bool goes_on = !on_token || on_token(text.prompt, id);
      if (goes_on && step + 1 < options.tokens) {
        next.push_back(id);
        ++row;
        continue;
      }
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(row));
      if (!running.empty()) decoder.remove(row);
    }
    if (running.empty()) break;
    if (decoder.length() == capacity)
      read_again(decoder, running.front().tokens, capacity);  // a single text: several fit by check_prompts
    else
      decoder.append(next);
  }
  result.generation_seconds = seconds_since(start) - result.prompt_seconds;
  return result;
}

std::vector<int32_t> generate(Backend& backend, Model& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token) {
  const std::span<const int32_t> read = prompt.last(std::min(prompt.size(), static_cast<size_t>(model.facts().context_length)));
  const std::vector<int32_t> only(read.begin(), read.end());
  return generate_batch(backend, model, std::span(&only, 1), options,
                        [&](size_t, int32_t id) {
                          if (on_token) on_token(id);
                          return true;
                        })
      .tokens.front();
}

}  // namespace dmuon
