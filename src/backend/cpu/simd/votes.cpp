// Votes over words, bit-sliced: a count of 64 elements at once is a set of words, plane j holding bit j of every count.
// Comparing with a threshold costs nothing: the planes start at 2^k - threshold, so that plane k is set once it is reached.
#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/signs.h"
#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

constexpr int64_t word_lanes = lanes / 2;
typedef uint64_t Words __attribute__((vector_size(lanes * 4)));
typedef uint64_t UnalignedWords __attribute__((vector_size(lanes * 4), aligned(8), may_alias));

inline Words load(const uint64_t* p) { return *reinterpret_cast<const UnalignedWords*>(p); }
inline void store(uint64_t* p, Words v) { *reinterpret_cast<UnalignedWords*>(p) = v; }

// a + b + c of every bit: the sum stays in a, the carry is returned.
template <class Word>
inline Word add(Word& a, Word b, Word c) {
  const Word half = a ^ b, carry = (a & b) | (half & c);
  a = half ^ c;
  return carry;
}
template <class Word>
inline Word add(Word& a, Word b) {
  const Word carry = a & b;
  a ^= b;
  return carry;
}

// Adds eight inputs to the planes 0, 1 and 2; returns the carry into plane 3.
template <class Word>
inline Word add_eight(Word* planes, const Word* in) {
  const Word two0 = add(planes[0], in[0], in[1]), two1 = add(planes[0], in[2], in[3]), four0 = add(planes[1], two0, two1);
  const Word two2 = add(planes[0], in[4], in[5]), two3 = add(planes[0], in[6], in[7]), four1 = add(planes[1], two2, two3);
  return add(planes[2], four0, four1);
}
// Adds `in` to the planes from .. count - 1.
template <class Word>
inline void add_from(Word* planes, int64_t from, int64_t count, Word in) {
  for (int64_t j = from; j < count; ++j) in = add(planes[j], in);
}

// The start of planes that reach bit `overflow_plane` with `threshold` counts: bit j of 2^overflow_plane - threshold.
inline bool start_bit(int64_t overflow_plane, int64_t threshold, int64_t j) {
  return (((int64_t{1} << overflow_plane) - threshold) >> j & 1) != 0;
}
// The plane whose setting says that `threshold` is reached; the planes below hold counts up to 2 * threshold - 1.
inline int64_t overflow_plane_of(int64_t threshold) {
  int64_t plane = 0;
  while ((int64_t{1} << plane) < threshold) ++plane;
  return plane;
}

// More than half of `inputs` (odd) words, in registers; at(i) loads input i.
template <class Word, int64_t inputs, class Load>
inline Word majority(const Load& at) {
  if constexpr (inputs <= 5) {
    Word sum = at(0);
    const Word two0 = add(sum, at(1), at(2));
    if (inputs == 3) return two0;
    const Word two1 = add(sum, at(3), at(4));
    return (two0 & two1) | (sum & (two0 | two1));
  }
  constexpr int64_t threshold = inputs / 2 + 1, top = inputs <= 7 ? 2 : inputs <= 15 ? 3 : 4, count = top + 1;
  Word planes[count];
#pragma GCC unroll 8
  for (int64_t j = 0; j < count; ++j) planes[j] = start_bit(top, threshold, j) ? ~Word{} : Word{};
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 8 <= inputs; i += 8) {
    const Word eight[8] = {at(i), at(i + 1), at(i + 2), at(i + 3), at(i + 4), at(i + 5), at(i + 6), at(i + 7)};
    add_from(planes, 3, count, add_eight(planes, eight));
  }
#pragma GCC unroll 4
  for (; i + 2 <= inputs; i += 2) add_from(planes, 1, count, add(planes[0], at(i), at(i + 1)));
  add_from(planes, 0, count, at(inputs - 1));  // an odd number of inputs leaves one
  return planes[top];
}

template <int64_t inputs>
void vote_few(const uint64_t* const* pointers, uint64_t* result, int64_t begin, int64_t end) {
  const uint64_t* in[inputs];
  for (int64_t i = 0; i < inputs; ++i) in[i] = pointers[i];
  constexpr int64_t line = 8, ahead = 16 * line;  // words; so many streams outrun the processor's own prefetching
  int64_t w = begin;
  for (; w + line <= end; w += line) {
#pragma GCC unroll 32
    for (int64_t i = 0; i < inputs; ++i) __builtin_prefetch(in[i] + w + ahead);
#pragma GCC unroll 4
    for (int64_t v = w; v < w + line; v += word_lanes)
      store(result + v, majority<Words, inputs>([&](int64_t i) { return load(in[i] + v); }));
  }
  for (; w < end; ++w) result[w] = majority<uint64_t, inputs>([&](int64_t i) { return in[i][w]; });
}

// Counts of a block of words, in the L1 cache while many inputs pass by eight at a time.
constexpr int64_t block_words = 64, most_planes = 34;  // counts of 32 bits and a plane for the overflow
struct BlockCounts {
  alignas(64) uint64_t planes[most_planes][block_words];

  void start(int64_t count, int64_t overflow_plane, int64_t threshold) {
    for (int64_t j = 0; j < count; ++j)
      for (int64_t w = 0; w < block_words; ++w) planes[j][w] = start_bit(overflow_plane, threshold, j) ? ~uint64_t{0} : 0;
  }
  void clear(int64_t count) { __builtin_memset(planes, 0, static_cast<unsigned long>(count) * sizeof planes[0]); }

  // Words [first, first + words) of all inputs; a partial block reads the inputs through a padded copy.
  void add_inputs(const SignInputs& inputs, int64_t count, int64_t first, int64_t words) {
    static const uint64_t none[block_words] = {};
    alignas(64) uint64_t padded[8][block_words];
    for (int64_t i = 0; i < inputs.count; i += 8) {
      const uint64_t* in[8];
      for (int64_t k = 0; k < 8; ++k) {
        in[k] = i + k < inputs.count ? inputs.words[i + k] + first : none;
        if (words == block_words || in[k] == none) continue;
        for (int64_t w = 0; w < block_words; ++w) padded[k][w] = w < words ? in[k][w] : 0;
        in[k] = padded[k];
      }
      for (int64_t w = 0; w < block_words; w += word_lanes) {
        Words group[8], low[3];
        for (int64_t k = 0; k < 8; ++k) group[k] = load(in[k] + w);
        for (int64_t j = 0; j < 3; ++j) low[j] = load(planes[j] + w);
        Words carry = add_eight(low, group);
        for (int64_t j = 0; j < 3; ++j) store(planes[j] + w, low[j]);
        for (int64_t j = 3; j < count; ++j) {
          Words plane = load(planes[j] + w);
          carry = add(plane, carry);
          store(planes[j] + w, plane);
        }
      }
    }
  }

  // Words of the counts of another node, plane by plane.
  void add_planes(const SignPlanes& node, int64_t count, int64_t first, int64_t words) {
    for (int64_t w = 0; w < words; ++w) {
      uint64_t carry = 0;
      for (int64_t j = 0; j < count; ++j) {
        if (j < node.count)
          carry = add(planes[j][w], node.planes[j * node.words + first + w], carry);
        else
          carry = add(planes[j][w], carry);
      }
    }
  }
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void vote_many(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end) {
  const int64_t threshold = inputs.count / 2 + 1, top = overflow_plane_of(threshold);
  const int64_t count = top + 1 < 3 ? 3 : top + 1;
  BlockCounts counts;
  for (int64_t first = begin; first < end; first += block_words) {
    const int64_t words = smaller(block_words, end - first);
    counts.start(count, top, threshold);
    counts.add_inputs(inputs, count, first, words);
    for (int64_t w = 0; w < words; ++w) result[first + w] = counts.planes[top][w];
  }
}

}  // namespace

void vote_signs(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end) {
  switch (inputs.count) {
    case 1:
      if (inputs.words[0] != result)
        __builtin_memcpy(result + begin, inputs.words[0] + begin, static_cast<unsigned long>(end - begin) * sizeof(uint64_t));
      return;
    case 3:
      return vote_few<3>(inputs.words, result, begin, end);
    case 5:
      return vote_few<5>(inputs.words, result, begin, end);
    case 7:
      return vote_few<7>(inputs.words, result, begin, end);
    case 9:
      return vote_few<9>(inputs.words, result, begin, end);
    case 17:
      return vote_few<17>(inputs.words, result, begin, end);
    default:
      return vote_many(inputs, result, begin, end);
  }
}

void any_signs(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end) {
  for (int64_t w = begin; w < end; ++w) {
    uint64_t any = 0;
    for (int64_t i = 0; i < inputs.count; ++i) any |= inputs.words[i][w];
    result[w] = any;
  }
}

void count_signs(const SignInputs& inputs, const SignPlanes& out, int64_t begin, int64_t end) {
  const int64_t count = out.count < 3 ? 3 : smaller(out.count, most_planes);
  BlockCounts counts;
  for (int64_t first = begin; first < end; first += block_words) {
    const int64_t words = smaller(block_words, end - first);
    counts.clear(count);
    counts.add_inputs(inputs, count, first, words);
    for (int64_t j = 0; j < out.count; ++j)
      for (int64_t w = 0; w < words; ++w) out.planes[j * out.words + first + w] = j < count ? counts.planes[j][w] : 0;
  }
}

void vote_counts(const SignPlanes* nodes, int64_t node_count, int64_t threshold, uint64_t* result, int64_t begin, int64_t end) {
  const int64_t top = overflow_plane_of(threshold), count = top + 1;
  BlockCounts counts;
  for (int64_t first = begin; first < end; first += block_words) {
    const int64_t words = smaller(block_words, end - first);
    counts.start(count, top, threshold);
    for (int64_t n = 0; n < node_count; ++n) counts.add_planes(nodes[n], count, first, words);
    for (int64_t w = 0; w < words; ++w) result[first + w] = counts.planes[top][w];
  }
}

}  // namespace dmuon::DMUON_SIMD
