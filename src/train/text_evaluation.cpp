#include "train/text_evaluation.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/batches.h"

namespace dmuon {
namespace {

// Bytes that ids stand for, each looked up once. The end of a text stands for none.
class ByteCounts {
 public:
  explicit ByteCounts(const Tokenizer* tokenizer)
      : tokenizer_(tokenizer), bytes_(tokenizer ? static_cast<size_t>(tokenizer->vocabulary_size()) : 0, -1) {
    if (tokenizer && tokenizer->end_of_text()) bytes_[static_cast<size_t>(*tokenizer->end_of_text())] = 0;
  }
  int64_t of(std::span<const int32_t> targets) {
    int64_t sum = 0;
    for (int32_t id : targets) {
      if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) continue;
      int64_t& bytes = bytes_[static_cast<size_t>(id)];
      if (bytes < 0) bytes = static_cast<int64_t>(tokenizer_->decode_bytes(std::span(&id, 1)).size());
      sum += bytes;
    }
    return sum;
  }

 private:
  const Tokenizer* tokenizer_;
  std::vector<int64_t> bytes_;  // -1: not known yet
};

}  // namespace

double TextEvaluationResult::perplexity() const { return std::exp(loss); }

double TextEvaluationResult::bits_per_byte() const {
  return loss * static_cast<double>(targets) / std::log(2.0) / static_cast<double>(target_bytes);
}

StridedWindows::StridedWindows(TokenSourceHandle source, int64_t length, int64_t stride)
    : source_(std::move(source)), length_(length), stride_(stride), windows_(1) {
  if (stride < 1 || stride > length) throw ConfigError(text("a stride of ", stride, " tokens: expected 1 to the window's ", length));
  const int64_t targets = source_->tokens() - 1;
  if (targets < 1) throw DataError(text("the data hold ", source_->tokens(), " tokens; a prediction takes at least two"));
  length_ = std::min(length_, targets);
  stride_ = std::min(stride_, length_);
  windows_ = 1 + divide_up(targets - length_, stride_);
}

HostTokenBatch StridedWindows::batch(std::span<const int64_t> samples) const {
  HostTokenBatch batch;
  batch.sequences = static_cast<int64_t>(samples.size());
  batch.length = length_;
  std::vector<int32_t> window(static_cast<size_t>(length_) + 1);
  for (int64_t sample : samples) {
    if (sample < 0 || sample >= windows_) throw DataError(text("window ", sample, " of ", windows_));
    const int64_t last = source_->tokens() - 1 - length_;
    const int64_t first = std::min(sample * stride_, last);
    const int64_t seen = sample == 0 ? 0 : std::min((sample - 1) * stride_, last) + length_ - first;  // targets of earlier windows
    source_->read(first, window);
    batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
    batch.targets.insert(batch.targets.end(), static_cast<size_t>(seen), -1);
    batch.targets.insert(batch.targets.end(), window.begin() + 1 + seen, window.end());
    batch.valid_targets += length_ - seen;
  }
  return batch;
}

TextEvaluationResult evaluate_text(Backend& backend, Model& model, const TokenSourceHandle& source, const Tokenizer* tokenizer,
                                   const TextEvaluationOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t context_length = model.facts().context_length;
  const int64_t length = options.length > 0 ? options.length : context_length;
  if (length > context_length) throw ConfigError(text("windows of ", length, " tokens: the model reads at most ", context_length));
  std::unique_ptr<Dataset> data;
  if (options.stride > 0)
    data = std::make_unique<StridedWindows>(source, length, options.stride);
  else
    data = std::make_unique<WindowDataset>(WindowDataset::sequential(source, length));
  int64_t windows = data->samples_per_epoch();
  TextEvaluationResult result;
  if (options.maximum_tokens > 0) {
    const int64_t step = options.stride > 0 ? options.stride : length;
    windows = std::min(windows, std::max<int64_t>(1, options.maximum_tokens / step));
  }
  ExecutionContext context{backend, backend.compute_stream()};
  ByteCounts bytes(tokenizer);
  for (int64_t first = 0; first < windows; first += options.batch_size) {
    const HostTokenBatch batch = data->batch(first, std::min(options.batch_size, windows - first));
    result.loss += evaluate_batch(model, context, batch);
    result.targets += batch.valid_targets;
    result.target_bytes += bytes.of(batch.targets);
    if (progress) progress(first + batch.sequences, windows);
  }
  if (!std::isfinite(result.loss)) throw NumericalError("the loss is not finite: the model's weights have left the range of float32");
  result.loss /= static_cast<double>(result.targets);
  if (options.stride == 0) result.tokens_left_out = source->tokens() - 1 - data->samples_per_epoch() * length;
  return result;
}

}  // namespace dmuon
