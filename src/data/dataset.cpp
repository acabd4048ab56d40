#include "dmuon/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

HostTokenBatch Dataset::batch(int64_t first, int64_t count) const {
  std::vector<int64_t> samples(static_cast<size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  return batch(samples);
}

WindowDataset::WindowDataset(TokenSourceHandle source, int64_t length, std::optional<SampleOrder> order)
    : source_(std::move(source)), length_(length), order_(std::move(order)) {}

WindowDataset WindowDataset::shuffled(TokenSourceHandle source, int64_t length, uint64_t seed) {
  const SampleOrder order(source->tokens(), length, seed);
  return WindowDataset(std::move(source), length, order);
}

WindowDataset WindowDataset::sequential(TokenSourceHandle source, int64_t length) {
  if (length <= 0) throw ShapeError(text("sequences of ", length, " tokens; expected at least one"));
  if (count_windows(source->tokens(), length) == 0)
    throw DataError(text("the validation data hold ", source->tokens(), " tokens, a sequence needs ", length + 1, " (", length,
                         " and the next one as target); shorten the sequence length or validate on more"));
  return WindowDataset(std::move(source), length, std::nullopt);
}

int64_t WindowDataset::samples_per_epoch() const {
  return order_ ? order_->windows_per_epoch() : count_windows(source_->tokens(), length_);
}

int64_t WindowDataset::first_token(int64_t sample) const {
  if (order_) return order_->sample(sample).first_token;
  if (sample < 0 || sample >= samples_per_epoch())
    throw DataError(text("sample ", sample, " requested of data that hold ", samples_per_epoch(), " sequences"));
  return sample * length_;
}

HostTokenBatch WindowDataset::batch(std::span<const int64_t> samples) const {
  HostTokenBatch out;
  out.sequences = static_cast<int64_t>(samples.size());
  out.length = length_;
  const auto length = static_cast<size_t>(length_);
  out.tokens.resize(samples.size() * length);
  out.targets.resize(samples.size() * length);
  std::vector<int32_t> window(length + 1);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i * length);
    if (samples[i] == padding) {
      std::fill_n(out.targets.begin() + at, length_, -1);
      continue;
    }
    source_->read(first_token(samples[i]), window);
    std::copy_n(window.begin(), length_, out.tokens.begin() + at);
    std::copy_n(window.begin() + 1, length_, out.targets.begin() + at);
    out.valid_targets += length_;
  }
  return out;
}

}  // namespace dmuon
