// Samples by number. A dataset is a pure function from global sample indices to a batch; the trainer owns order and
// position.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dmuon/data/sample_order.h"
#include "dmuon/data/token_source.h"

namespace dmuon {

// Host memory, row-major [sequences, length]. A negative target is masked: it takes no part in the loss.
struct HostTokenBatch {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  int64_t valid_targets = 0;
};

class Dataset {
 public:
  static constexpr int64_t padding = -1;

  virtual ~Dataset() = default;
  virtual int64_t length() const = 0;  // tokens a sequence
  // Samples of one pass; indices may go beyond it where the dataset repeats.
  virtual int64_t samples_per_epoch() const = 0;
  // One sequence per index, in the order given; the index `padding` gives tokens 0 with all targets masked, so that a
  // batch keeps its shape when samples run out. DataError for an index that doesn't exist or bad data.
  virtual HostTokenBatch batch(std::span<const int64_t> samples) const = 0;

  // Consecutive samples [first, first + count).
  HostTokenBatch batch(int64_t first, int64_t count) const;
};

// Windows of a token source: inputs tokens[w, w + length), targets one token further.
class WindowDataset : public Dataset {
 public:
  // For training: endless, shuffled by SampleOrder.
  static WindowDataset shuffled(TokenSourceHandle source, int64_t length, uint64_t seed);
  // For evaluation: every window of the grid at offset 0, in order; sample i is tokens [i·length, (i + 1)·length].
  static WindowDataset sequential(TokenSourceHandle source, int64_t length);

  using Dataset::batch;
  int64_t length() const override { return length_; }
  int64_t samples_per_epoch() const override;
  HostTokenBatch batch(std::span<const int64_t> samples) const override;
  // First token of a sample's window.
  int64_t first_token(int64_t sample) const;

 private:
  WindowDataset(TokenSourceHandle source, int64_t length, std::optional<SampleOrder> order);
  TokenSourceHandle source_;
  int64_t length_;
  std::optional<SampleOrder> order_;  // none: in order
};

}  // namespace dmuon
