// Ids of words seen before: a table of fixed size in which a word replaces what lay in its place. One user at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace dmuon {

class WordCache {
 public:
  static constexpr size_t longest_word = 30, most_ids = 8;

  // A cache line.
  struct alignas(64) Slot {
    uint8_t length = 0, count = 0;  // length 0: empty
    char word[longest_word];
    int32_t ids[most_ids];

    bool holds(std::string_view wanted) const { return length == wanted.size() && std::memcmp(word, wanted.data(), wanted.size()) == 0; }
    void set(std::string_view text, std::span<const int32_t> found) {
      length = static_cast<uint8_t>(text.size());
      count = static_cast<uint8_t>(found.size());
      std::memcpy(word, text.data(), text.size());
      std::memcpy(ids, found.data(), found.size_bytes());
    }
  };

  WordCache() : entries_(size_t{1} << bits) {}
  // Where `word`, of 1 to longest_word bytes, lies or would lie.
  Slot& slot(std::string_view word) { return entries_[hash(word) >> (64 - bits)]; }

 private:
  static constexpr int bits = 16;  // 4 MiB

  static uint64_t load(const char* at, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, at, bytes);
    return value;
  }
  static uint64_t hash(std::string_view word) {
    constexpr uint64_t factor = 0x9E3779B97F4A7C15u;
    const char* at = word.data();
    const size_t size = word.size();
    uint64_t mixed = size * factor;
    if (size >= 8) {
      for (size_t i = 0; i + 8 < size; i += 8) mixed = (mixed ^ load(at + i, 8)) * factor, mixed ^= mixed >> 32;
      mixed ^= load(at + size - 8, 8);
    } else if (size >= 4) {
      mixed ^= load(at, 4) | load(at + size - 4, 4) << 32;
    } else {
      mixed ^= load(at, 1) | load(at + size / 2, 1) << 8 | load(at + size - 1, 1) << 16;
    }
    mixed *= factor;
    mixed ^= mixed >> 32;
    return mixed * factor;
  }

  std::vector<Slot> entries_;
};

}  // namespace dmuon
