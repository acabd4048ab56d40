// The merges of a BPE vocabulary, and their application to one word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dmuon {

class MergeTable {
 public:
  static constexpr int32_t none = INT32_MAX;
  struct Merge {
    int32_t rank = none;  // lower ranks go first
    int32_t result = 0;
  };

  explicit MergeTable(int64_t expected);
  // False if the pair has a merge already. At most the `expected` number of pairs.
  bool add(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = place(key);; at = (at + 1) & mask_) {
      if (entries_[at].key == key) return entries_[at].merge;
      if (entries_[at].key == empty) return {};
    }
  }
  // Merges `ids` in place: always the pair of the lowest rank, the leftmost of equals, until no pair has a merge. No memory is
  // allocated for words of up to 48 ids; longer ones take time proportional to n log n.
  void apply(std::vector<int32_t>& ids) const;

 private:
  static constexpr uint64_t empty = ~uint64_t{0};
  struct Entry {
    uint64_t key = empty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t key) const { return static_cast<size_t>((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> shift_); }
  void apply_short(std::vector<int32_t>& ids) const;
  void apply_long(std::vector<int32_t>& ids) const;

  int shift_;
  size_t mask_;
  std::vector<Entry> entries_;
};

}  // namespace dmuon
