// Which piece of the data is sample number g of a run: a pure function of seed and g. It holds no position, so a resumed
// run needs one integer, and it doesn't know how many ranks there are.
#pragma once

#include <cstdint>

namespace dmuon {

// Windows of `length` inputs and their targets, one token further, on a grid that starts at `offset`:
// floor((tokens - 1 - offset) / length), so k·length + 1 tokens hold exactly k windows. Not negative.
int64_t count_windows(int64_t tokens, int64_t length, int64_t offset = 0);

// A permutation of [0, count) without a table: a balanced Feistel network over the next power of four, walked until it
// lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). O(1) at any index.
class Permutation {
 public:
  // Equal (count, seed, epoch) give the same permutation. ShapeError unless count > 0.
  Permutation(int64_t count, uint64_t seed, uint64_t epoch);
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int rounds = 8;
  int64_t count_;
  int half_bits_;
  uint64_t keys_[rounds];
};

struct Sample {
  int64_t epoch = 0;
  int64_t first_token = 0;  // the window is [first_token, first_token + length], both ends included
};

// Endless order over `tokens` tokens cut into windows of `length` inputs. Every epoch visits each window of its grid
// once in a new permutation, and moves the grid by a new offset in [0, length), so that windows don't always break at
// the same places. All epochs have equally many windows, those that fit at the largest offset; data too short for
// that (fewer than 2·length tokens) keeps offset 0. DataError if not even one window fits.
class SampleOrder {
 public:
  SampleOrder(int64_t tokens, int64_t length, uint64_t seed);
  int64_t windows_per_epoch() const { return windows_; }
  int64_t offset(int64_t epoch) const;
  Sample sample(int64_t index) const;  // index >= 0

 private:
  int64_t length_;
  uint64_t seed_;
  bool shifts_;
  int64_t windows_;
};

// Contiguous share of a global batch of `count` samples for one of `ranks` ranks: shares differ by at most one, lower ranks
// take the rest. A step's samples are the next `count` global indices, whatever the number of ranks.
struct Block {
  int64_t first = 0;
  int64_t count = 0;
};
Block block(int64_t count, int rank, int ranks);

}  // namespace dmuon
