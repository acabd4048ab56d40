// Tokens from a model, with a key/value cache, for one prompt or several together. Random numbers come from a stream of their
// own, so sampling never disturbs training.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "dmuon/nn/model.h"

namespace dmuon {

struct GenerationOptions {
  int64_t tokens = 200;             // at most this many for a prompt
  double temperature = 0.8;         // 0: always the most likely token
  int64_t top_k = 0;                // 0: all
  double top_p = 1.0;               // smallest set of tokens with at least this probability, among the top_k
  double repetition_penalty = 1.0;  // of every token that the prompt or the new text holds (apply_repetition_penalty)
  uint64_t seed = 0;
  int64_t classes = 0;    // only ids below this are drawn, a tokenizer may know fewer than the model; 0: all the model's
  uint64_t sequence = 0;  // number of this text among several with one seed
  bool cache = true;      // false: every token reads all before it again, for comparison
};

// Divides the positive logits of all ids in `context` by `penalty` and multiplies the others by it, each id once, however often
// it occurs (Keskar et al., "CTRL", 2019, section 4.1, for logits of either sign as transformers does). 1 changes nothing. Ids
// outside `logits` are passed over.
void apply_repetition_penalty(std::span<float> logits, std::span<const int32_t> context, double penalty);

// One token out of `logits` (classes values): temperature, then top-k, then top-p. Pure: `draw` is the index of the random
// number. NumericalError where a logit is NaN or the largest is infinite.
int32_t sample_token(std::span<const float> logits, const GenerationOptions& options, uint64_t draw);

struct GenerationResult {
  std::vector<std::vector<int32_t>> tokens;             // new ones of every prompt
  int64_t prompt_tokens = 0, generated_tokens = 0;      // the latter without each text's first, which reading the prompt gives
  double prompt_seconds = 0.0, generation_seconds = 0;  // of reading the prompts, of all later steps
};

// Called with the number of the prompt and each new token as it comes; false ends that text, this token being its last.
using TokenListener = std::function<bool(size_t prompt, int32_t id)>;

// Continues several prompts: prompt p is text number options.sequence + p, and on the CPU its tokens are the same alone and beside up
// to fifteen others (products of up to sixteen rows give the same bits per row). Prompts may have any lengths: each is read by a pass
// of its own, equal ones once; then every step is one pass for all texts that have not ended. DataError for an empty prompt, an id outside
// the model, and a prompt longer than the context (both lengths named). Where a prompt and options.tokens exceed the context: when the
// context is full, the last half of it is read again at the start positions, and the others go on.
GenerationResult generate_batch(Backend& backend, Model& model, std::span<const std::vector<int32_t>> prompts,
                                const GenerationOptions& options, const TokenListener& on_token = {});

// The same for one prompt, of which only the last context_length tokens are read: exactly one forward pass for each new token.
// Returns the new tokens.
std::vector<int32_t> generate(Backend& backend, Model& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace dmuon
