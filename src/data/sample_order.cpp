#include "dmuon/data/sample_order.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {

int64_t count_windows(int64_t tokens, int64_t length, int64_t offset) {
  return tokens - 1 < offset + length ? 0 : (tokens - 1 - offset) / length;
}

Permutation::Permutation(int64_t count, uint64_t seed, uint64_t epoch) : count_(count), half_bits_(1) {
  if (count <= 0) throw ShapeError(text("a permutation of ", count, " items; expected at least one"));
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < count) ++half_bits_;
  if (half_bits_ == 31 && count > int64_t{1} << 62) throw ShapeError(text("a permutation of ", count, " items; at most 2^62"));
  const Random random(seed, RandomStream::data_order, epoch);
  for (int round = 0; round < rounds; ++round) keys_[round] = random.bits(static_cast<uint64_t>(round));
}

int64_t Permutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix64(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(count_));  // ends: the network is a bijection, so the walk returns to `index` at the latest
  return static_cast<int64_t>(value);
}

SampleOrder::SampleOrder(int64_t tokens, int64_t length, uint64_t seed) : length_(length), seed_(seed) {
  if (length <= 0) throw ShapeError(text("sequences of ", length, " tokens; expected at least one"));
  const int64_t shifted = count_windows(tokens, length, length - 1);
  shifts_ = shifted > 0;
  windows_ = shifts_ ? shifted : count_windows(tokens, length);
  if (windows_ == 0)
    throw DataError(text("the training data hold ", tokens, " tokens, a sequence needs ", length + 1, " (", length,
                         " and the next one as target); shorten the sequence length or add data"));
}

int64_t SampleOrder::offset(int64_t epoch) const {
  if (!shifts_) return 0;
  return static_cast<int64_t>(Random(seed_, RandomStream::data_offset).below(static_cast<uint64_t>(length_), static_cast<uint64_t>(epoch)));
}

Sample SampleOrder::sample(int64_t index) const {
  if (index < 0) throw ShapeError(text("sample ", index, "; expected zero or more"));
  const int64_t epoch = index / windows_;
  const int64_t window = Permutation(windows_, seed_, static_cast<uint64_t>(epoch))(index % windows_);
  return {epoch, offset(epoch) + window * length_};
}

Block block(int64_t count, int rank, int ranks) {
  const int64_t share = count / ranks, rest = count % ranks;
  return {share * rank + std::min<int64_t>(rank, rest), share + (rank < rest ? 1 : 0)};
}

}  // namespace dmuon
