// Text from a model, one token at a time, with a key/value cache. Random numbers come from a stream of their own, so
// sampling never disturbs training.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dmuon/data/tokenizer.h"
#include "dmuon/nn/model.h"

namespace dmuon {

struct GenerationOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;        // smallest set of tokens with at least this probability
  uint64_t seed = 0;
  int64_t classes = 0;    // only ids below this are drawn, a tokenizer may know fewer than the model; 0: all the model's
  uint64_t sequence = 0;  // number of this text among several with one seed
};

// One token out of `logits` (classes values). Pure: `draw` is the index of the random number. NumericalError for a NaN.
int32_t sample_token(std::span<const float> logits, const GenerationOptions& options, uint64_t draw);

// Continues `prompt` (at least one token; ids < vocabulary) and returns the new tokens; `on_token` sees each as it
// comes. When the context is full the last half of it is read again at the start positions, since positions are learned.
std::vector<int32_t> generate(Backend& backend, Model& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace dmuon
