// Loss of a model on a sequence of tokens.
#pragma once

#include <functional>

#include "dmuon/data/dataset.h"
#include "dmuon/data/tokenizer.h"
#include "dmuon/nn/model.h"

namespace dmuon {

struct TextEvaluationOptions {
  int64_t length = 0;          // tokens a window; 0: the model's context
  int64_t stride = 0;          // see below; 0: non-overlapping windows as in training
  int64_t batch_size = 8;      // windows computed together
  int64_t maximum_tokens = 0;  // targets at most, in whole windows but at least one; 0: all
};

struct TextEvaluationResult {
  double loss = 0.0;            // mean over targets, natural logarithm
  int64_t targets = 0;          // tokens that were predicted
  int64_t tokens_left_out = 0;  // at the end, that fill no window
  int64_t target_bytes = 0;     // bytes that the targets stand for; 0 without a tokenizer
  double perplexity() const;
  double bits_per_byte() const;  // only where target_bytes > 0
};

// Windows [first, first + length) of a sequence whose starts lie `stride` apart; in each, only the targets that no earlier window
// has count, so every token but the first is predicted once, and all but those of the first window with at least length - stride
// tokens before it. The last window ends with the sequence. ConfigError unless 1 <= stride <= length; DataError for fewer than two
// tokens.
class StridedWindows final : public Dataset {
 public:
  StridedWindows(TokenSourceHandle source, int64_t length, int64_t stride);
  using Dataset::batch;
  int64_t length() const override { return length_; }
  int64_t samples_per_epoch() const override { return windows_; }
  HostTokenBatch batch(std::span<const int64_t> samples) const override;

 private:
  TokenSourceHandle source_;
  int64_t length_, stride_, windows_;
};

// With stride 0 the windows, and so the loss, are those of the evaluation during training (WindowDataset::sequential): what fills no
// window at the end is left out, and the first tokens of each window are predicted from little. `progress` sees windows done and
// all windows. ConfigError for a length beyond the model's context.
TextEvaluationResult evaluate_text(Backend& backend, Model& model, const TokenSourceHandle& source, const Tokenizer* tokenizer,
                                   const TextEvaluationOptions& options, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace dmuon
