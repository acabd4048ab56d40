// Between vectors and the 64 bits of a word of signs, and the segments of a piece (sign_kernels.h).
#pragma once

#include "backend/cpu/simd/signs.h"
#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

using simd::SignPiece;

constexpr int64_t word_bits = 64;

// Vectors of the bits of float32 and of bfloat16.
typedef uint32_t Singles __attribute__((vector_size(lanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(lanes * 4)));
constexpr int64_t single_vectors = word_bits / lanes, half_vectors = word_bits / (2 * lanes);

// The elements of which one instruction collects the signs, and the vectors that hold them.
#if defined(__AVX512F__)
constexpr int64_t single_group = lanes, half_group = 2 * lanes;
#else
constexpr int64_t single_group = 4 * lanes, half_group = 4 * lanes;
#endif
constexpr int64_t single_group_vectors = single_group / lanes, half_group_vectors = half_group / (2 * lanes);

// Bit i: the sign of element i of a group; whether element i is zero, for elements that are not negative.
#if defined(__AVX512F__)
inline uint64_t group_signs(const Singles* v) { return _mm512_movepi32_mask(reinterpret_cast<__m512i>(v[0])); }
inline uint64_t group_signs(const Halves* v) { return _mm512_movepi16_mask(reinterpret_cast<__m512i>(v[0])); }
inline uint64_t group_zeros(const Singles* v) {
  return _mm512_testn_epi32_mask(reinterpret_cast<__m512i>(v[0]), reinterpret_cast<__m512i>(v[0]));
}
inline uint64_t group_zeros(const Halves* v) {
  return _mm512_testn_epi16_mask(reinterpret_cast<__m512i>(v[0]), reinterpret_cast<__m512i>(v[0]));
}
#elif defined(__AVX2__)
// One byte an element. Packing saturates, so it keeps signs and what is not zero; it works on 128-bit halves, which the permutations
// put in order.
inline __m256i group_bytes(const Singles* v) {
  const __m256i low = _mm256_packs_epi32(reinterpret_cast<__m256i>(v[0]), reinterpret_cast<__m256i>(v[1]));
  const __m256i high = _mm256_packs_epi32(reinterpret_cast<__m256i>(v[2]), reinterpret_cast<__m256i>(v[3]));
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline __m256i group_bytes(const Halves* v) {
  const __m256i packed = _mm256_packs_epi16(reinterpret_cast<__m256i>(v[0]), reinterpret_cast<__m256i>(v[1]));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}
template <class Vector>
inline uint64_t group_signs(const Vector* v) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(group_bytes(v)));
}
template <class Vector>
inline uint64_t group_zeros(const Vector* v) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(group_bytes(v), _mm256_setzero_si256())));
}
#else
inline __m128i group_bytes(const Singles* v) {
  const __m128i low = _mm_packs_epi32(reinterpret_cast<__m128i>(v[0]), reinterpret_cast<__m128i>(v[1]));
  const __m128i high = _mm_packs_epi32(reinterpret_cast<__m128i>(v[2]), reinterpret_cast<__m128i>(v[3]));
  return _mm_packs_epi16(low, high);
}
inline __m128i group_bytes(const Halves* v) { return _mm_packs_epi16(reinterpret_cast<__m128i>(v[0]), reinterpret_cast<__m128i>(v[1])); }
template <class Vector>
inline uint64_t group_signs(const Vector* v) {
  return static_cast<uint32_t>(_mm_movemask_epi8(group_bytes(v)));
}
template <class Vector>
inline uint64_t group_zeros(const Vector* v) {
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(group_bytes(v), _mm_setzero_si128())));
}
#endif

// Bit i: the sign of element i of 64.
inline uint64_t sign_bits(const Singles* v) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < word_bits / single_group; ++i) bits |= group_signs(v + single_group_vectors * i) << (single_group * i);
  return bits;
}
inline uint64_t sign_bits(const Halves* v) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < word_bits / half_group; ++i) bits |= group_signs(v + half_group_vectors * i) << (half_group * i);
  return bits;
}

// All ones in lane j where bit j of `bits` is set.
inline Ints lane_mask(uint64_t bits) {
  Ints one_bit{};
  for (int64_t i = 0; i < lanes; ++i) one_bit[i] = 1 << i;
  return ((Ints{} + static_cast<int32_t>(bits & ((uint64_t{1} << lanes) - 1))) & one_bit) != 0;
}

// The lowest `count` bits, 0 <= count <= 64.
inline uint64_t low_bits(int64_t count) { return count >= word_bits ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// Walks over the segments of a piece in order.
class SegmentWalk {
 public:
  SegmentWalk(const SignPiece& piece, int64_t element, int64_t segment)
      : row_length_(piece.row_length),
        chunk_(piece.chunk),
        row_end_(element + piece.row_length - (piece.first + element) % piece.row_length),
        chunk_end_(element + piece.chunk - (piece.first + element) % piece.chunk),
        segment_(segment) {}

  int64_t segment() const { return segment_; }
  int64_t end() const { return row_end_ < chunk_end_ ? row_end_ : chunk_end_; }  // may lie behind the piece
  int64_t row_length() const { return row_length_; }
  int64_t chunk_end() const { return chunk_end_; }
  // The last row that begins before `element`, which lies behind the end of the present row.
  int64_t last_row(int64_t element) const { return row_end_ + (element - 1 - row_end_) / row_length_ * row_length_; }
  void advance() {
    const int64_t passed = end();
    if (row_end_ == passed) row_end_ += row_length_;
    if (chunk_end_ == passed) chunk_end_ += chunk_;
    ++segment_;
  }
  // To the segment that holds `element`, which does not lie before the present one.
  void advance_to(int64_t element) {
    while (end() <= element) {
      const int64_t limit = chunk_end_ < element ? chunk_end_ : element;
      if (row_end_ < limit) {  // all rows that end before the chunk does, at once
        const int64_t rows = (limit - 1 - row_end_) / row_length_ + 1;
        row_end_ += rows * row_length_;
        segment_ += rows;
      } else {
        advance();
      }
    }
  }

 private:
  int64_t row_length_, chunk_, row_end_, chunk_end_, segment_;
};

// Which elements of a word lie in segments that the header calls non-zero, word by word in order.
class ActiveWalk {
 public:
  ActiveWalk(const SignPiece& piece, const uint64_t* header, int64_t element, int64_t segment)
      : walk_(piece, element, segment), header_(header) {
    look();
  }

  // Of the elements first .. first + 63; those from `last` on are not looked at.
  uint64_t word(int64_t first, int64_t last) {
    if (walk_.end() > first + word_bits || walk_.end() > last) return active_;
    uint64_t bits = 0;
    int64_t from = first;
    const int64_t to = first + word_bits < last ? first + word_bits : last;
    while (walk_.end() <= to) {
      bits |= active_ & (low_bits(walk_.end() - first) & ~low_bits(from - first));
      from = walk_.end();
      if (from >= last) return bits;  // the piece ends here: there is no next segment
      walk_.advance();
      look();
    }
    return bits | (active_ & ~low_bits(from - first));
  }

 private:
  void look() {
    const int64_t bit = 1 + walk_.segment();
    active_ = ((header_[bit / word_bits] >> (bit % word_bits)) & 1) != 0 ? ~uint64_t{0} : 0;
  }

  SegmentWalk walk_;
  const uint64_t* header_;
  uint64_t active_ = 0;  // of the present segment, in every bit
};

}  // namespace
}  // namespace dmuon::DMUON_SIMD
