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

void check_prompts(const ModelFacts& facts, std::span<const std::vector<int32_t>> prompts) {
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) throw DataError("an empty prompt: give at least one token to start from");
    for (int32_t id : prompt)
      if (id < 0 || id >= facts.vocabulary_size)
        throw DataError(text("prompt token ", id, " is outside the model's vocabulary of ", facts.vocabulary_size));
    const auto length = static_cast<int64_t>(prompt.size());
    if (length > facts.context_length)
      throw DataError(text("the prompt has ", length, " tokens, the model reads at most ", facts.context_length, "; shorten it"));
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

// One token more for every text. Where the memory of one is full, its context starts again with the last half of it.
void advance(Decoder& decoder, const std::vector<Running>& running, std::span<const int32_t> next, int64_t capacity) {
  const auto keep = static_cast<size_t>(std::max<int64_t>(1, capacity / 2));
  std::vector<size_t> full;
  for (size_t row = 0; row < running.size(); ++row)
    if (decoder.length(row) == capacity) full.push_back(row);
  if (full.size() < running.size()) {
    for (size_t row : full) decoder.clear(row);  // takes part in the pass of the others, and is read anew after it
    decoder.append(next);
  }
  for (size_t row : full) decoder.read_again(row, std::span(running[row].tokens).last(keep));
}

}  // namespace

GenerationResult generate_batch(Backend& backend, Model& model, std::span<const std::vector<int32_t>> prompts,
                                const GenerationOptions& given, const TokenListener& on_token) {
  const ModelFacts facts = model.facts();
  GenerationOptions options = given;
  options.classes = options.classes > 0 ? std::min(options.classes, facts.vocabulary_size) : facts.vocabulary_size;
  check_prompts(facts, prompts);
  GenerationResult result;
  result.tokens.resize(prompts.size());
  if (options.tokens <= 0 || prompts.empty()) return result;
  std::vector<Running> running;
  std::vector<std::span<const int32_t>> texts;
  int64_t longest = 0;
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    running.push_back({prompt, prompts[prompt]});
    texts.emplace_back(prompts[prompt]);
    longest = std::max(longest, static_cast<int64_t>(prompts[prompt].size()));
    result.prompt_tokens += static_cast<int64_t>(prompts[prompt].size());
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
    advance(decoder, running, next, capacity);
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
