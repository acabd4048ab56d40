// Floats to words of signs and back. Compiled without contraction to fused multiply-adds (see optimizer.h).
#include "backend/cpu/simd/signs.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/publishing.h"
#include "backend/cpu/simd/sign_bits.h"

namespace dmuon::DMUON_SIMD {
namespace {

// The hash of signs.h, here once more because these files share no code with others (see vector.h).
inline uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
// Bit j: the sign of a zero at index + j.
inline uint64_t zero_signs(uint64_t key, uint64_t index) {
  const uint64_t block = index / word_bits, shift = index % word_bits;
  const uint64_t here = mix(key ^ mix(block)) >> shift;
  return shift == 0 ? here : here | mix(key ^ mix(block + 1)) << (word_bits - shift);
}

// A floating type by its bits.
template <class Bits>
struct Format;
template <>
struct Format<uint32_t> {
  typedef Singles Vector;
  typedef int32_t Signed __attribute__((vector_size(lanes * 4)));
  typedef uint32_t Unaligned __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
  static constexpr int64_t vectors = single_vectors;
  static constexpr uint32_t magnitude = 0x7fffffffu, infinity = 0x7f800000u;
};
template <>
struct Format<uint16_t> {
  typedef Halves Vector;
  typedef int16_t Signed __attribute__((vector_size(lanes * 4)));
  typedef uint16_t Unaligned __attribute__((vector_size(lanes * 4), aligned(2), may_alias));
  static constexpr int64_t vectors = half_vectors;
  static constexpr uint16_t magnitude = 0x7fffu, infinity = 0x7f80u;
};

// Whether a comparison holds in any lane.
template <class Mask>
inline bool any(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask)) == 0;
#else
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(mask)) != 0;
#endif
}

// 64 elements without zeros and non-numbers: their signs, set where positive. False, and nothing written, where there are such. Both
// share one comparison: magnitude - 1, unsigned, is at least infinity - 1.
template <class Bits>
inline bool plain_word(const Bits* in, uint64_t* word) {
  using F = Format<Bits>;
  using Vector = typename F::Vector;
  Vector v[F::vectors];
  Vector worst{};
#pragma GCC unroll 16
  for (int64_t i = 0; i < F::vectors; ++i) {
    v[i] = reinterpret_cast<const typename F::Unaligned*>(in)[i];
    const Vector magnitude = (v[i] & F::magnitude) - 1;
    worst = magnitude > worst ? magnitude : worst;
  }
  const uint64_t negative = sign_bits(v);
  if (__builtin_expect(any(worst >= Vector{} + static_cast<Bits>(F::infinity - 1)), 0)) return false;
  *word = ~negative;
  return true;
}

struct WordSigns {
  uint64_t positive, zero;
};

// Signs and zeros of 64 elements; `largest` collects the largest magnitudes of every lane. Right where all are numbers.
template <class Bits>
inline WordSigns word_signs(const Bits* in, typename Format<Bits>::Signed* largest) {
  using F = Format<Bits>;
  const auto* vectors = reinterpret_cast<const typename F::Unaligned*>(in);
  typename F::Vector v[F::vectors];
#pragma GCC unroll 16
  for (int64_t i = 0; i < F::vectors; ++i) {
    const auto magnitude = reinterpret_cast<typename F::Signed>(vectors[i] & F::magnitude);
    v[i] = reinterpret_cast<typename F::Vector>(magnitude == 0);
    *largest = magnitude > *largest ? magnitude : *largest;
  }
  const uint64_t zeros = sign_bits(v);
  asm volatile("" ::: "memory");  // loaded once more: kept, the vectors would not fit into registers beside their masks
#pragma GCC unroll 16
  for (int64_t i = 0; i < F::vectors; ++i) v[i] = vectors[i];
  return {~(sign_bits(v) | zeros), zeros};
}
template <class Bits>
inline bool has_non_finite(typename Format<Bits>::Signed largest) {
  return any(largest >= typename Format<Bits>::Signed{} + static_cast<Bits>(Format<Bits>::infinity));
}

// Bit i: element i of 64 is NaN, which counts as not positive.
template <class Bits>
inline uint64_t nan_bits(const Bits* in) {
  using F = Format<Bits>;
  typename F::Vector v[F::vectors];
#pragma GCC unroll 16
  for (int64_t i = 0; i < F::vectors; ++i)
    v[i] = reinterpret_cast<typename F::Vector>((reinterpret_cast<const typename F::Unaligned*>(in)[i] & F::magnitude) > F::infinity);
  return sign_bits(v);
}

// The bits of a header, written word by word; several threads may write into one word.
class HeaderWriter {
 public:
  explicit HeaderWriter(uint64_t* header) : header_(header) {}
  ~HeaderWriter() { flush(); }
  HeaderWriter(const HeaderWriter&) = delete;
  HeaderWriter& operator=(const HeaderWriter&) = delete;

  void set(int64_t bit) {
    if (bit / word_bits != word_) {
      flush();
      word_ = bit / word_bits;
    }
    bits_ |= uint64_t{1} << (bit % word_bits);
  }
  void set_range(int64_t first, int64_t last) {  // both included
    for (int64_t bit = first; bit <= last; bit = (bit / word_bits + 1) * word_bits) {
      set(bit);
      bits_ |= low_bits(last + 1 - word_ * word_bits) & ~low_bits(bit % word_bits);
    }
  }

 private:
  void flush() {
    if (bits_ != 0) __atomic_fetch_or(header_ + word_, bits_, __ATOMIC_RELAXED);
    bits_ = 0;
  }

  uint64_t* header_;
  int64_t word_ = 0;
  uint64_t bits_ = 0;
};

// Asks for the 64 elements that lie some lines ahead: the processor's own prefetching stops at pages and runs too close.
template <class Bits>
inline void prefetch(const Bits* in) {
  constexpr int64_t ahead = 1024, line = 64;  // bytes
  for (int64_t byte = 0; byte < word_bits * static_cast<int64_t>(sizeof(Bits)); byte += line)
    __builtin_prefetch(reinterpret_cast<const char*>(in) + ahead + byte);
}

// Zeros come in crowds, and a guess which of them fails costs more than to look for them: after the first, this many words take
// the path that expects them.
constexpr int64_t words_with_zeros = 16;

template <class Bits>
class Packer {
 public:
  Packer(const PackSignsTask& task, const Bits* in, int64_t begin, int64_t segment)
      : in_(in),
        words_(task.words),
        key_(task.key),
        tensor_first_(static_cast<uint64_t>(task.piece.first)),
        walk_(task.piece, begin, segment),
        header_(task.header) {}

  void pack(int64_t first, int64_t end) {
    const int64_t whole = end - (end - first) % word_bits;
    while (first < whole) {
      first = plain_words(first, whole);
      const int64_t behind = whole - first < words_with_zeros * word_bits ? whole : first + words_with_zeros * word_bits;
      words_of_zeros(first, behind);
      first = behind;
    }
    if (first < end) last_word(first, end - first);
  }

 private:
  // Up to the first word that is not plain. Every segment that reaches into these words has a non-zero element.
  int64_t plain_words(const int64_t begin, int64_t end) {
    int64_t first = begin;
    for (; first < end; first += word_bits) {
      prefetch(in_ + first);
      if (!plain_word(in_ + first, words_ + first / word_bits)) break;
    }
    if (first > begin) {
      const int64_t segment = walk_.segment();
      walk_.advance_to(first - 1);
      header_.set_range(1 + segment, 1 + walk_.segment());
    }
    return first;
  }

  void words_of_zeros(int64_t begin, int64_t end) {
    typename Format<Bits>::Signed largest{};
    for (int64_t first = begin; first < end; first += word_bits) {
      // Words that lie in one segment and don't end it.
      uint64_t non_zero = 0;
      for (const int64_t inside = walk_.end() - 1 < end ? walk_.end() - 1 : end; first + word_bits <= inside; first += word_bits) {
        prefetch(in_ + first);
        const WordSigns signs = word_signs(in_ + first, &largest);
        store(first, signs);
        non_zero |= ~signs.zero;
      }
      if (non_zero != 0) header_.set(1 + walk_.segment());
      if (first >= end) break;
      prefetch(in_ + first);
      const WordSigns signs = word_signs(in_ + first, &largest);
      store(first, signs);
      mark(first, word_bits, ~signs.zero);
    }
    if (__builtin_expect(has_non_finite<Bits>(largest), 0)) {
      header_.set(0);
      for (int64_t first = begin; first < end; first += word_bits) words_[first / word_bits] &= ~nan_bits(in_ + first);
    }
  }

  void last_word(int64_t first, int64_t count) {
    Bits padded[word_bits];
    for (int64_t i = 0; i < word_bits; ++i) padded[i] = i < count ? in_[first + i] : Bits{1};
    typename Format<Bits>::Signed largest{};
    const WordSigns signs = word_signs<Bits>(padded, &largest);
    store(first, signs);
    words_[first / word_bits] &= ~nan_bits(padded) & low_bits(count);
    if (has_non_finite<Bits>(largest)) header_.set(0);
    mark(first, count, ~signs.zero & low_bits(count));
  }

  void store(int64_t first, const WordSigns& signs) {
    const auto index = static_cast<uint64_t>(first);
    words_[index / word_bits] = signs.positive | (signs.zero & zero_signs(key_, tensor_first_ + index));
  }

  // Bit j of non_zero: element first + j is not zero.
  void mark(int64_t first, int64_t count, uint64_t non_zero) {
    while (walk_.end() <= first + count) {
      const uint64_t inside = low_bits(walk_.end() - first);
      if ((non_zero & inside) != 0) header_.set(1 + walk_.segment());
      non_zero &= ~inside;
      walk_.advance();
    }
    if (non_zero != 0) header_.set(1 + walk_.segment());
  }

  const Bits* in_;
  uint64_t* words_;
  uint64_t key_;
  uint64_t tensor_first_;
  SegmentWalk walk_;
  HeaderWriter header_;
};

}  // namespace

void pack_signs(const PackSignsTask& task, int64_t begin, int64_t end, int64_t segment) {
  if (task.float32)
    Packer(task, task.float32, begin, segment).pack(begin, end);
  else
    Packer(task, task.bfloat16, begin, segment).pack(begin, end);
}

void apply_signs(const ApplySignsTask& task, int64_t begin, int64_t end, int64_t segment) {
  ActiveWalk walk(task.piece, task.header, begin, segment);
  const float keep = task.keep, step = task.step;
  const Floats keeps = broadcast(keep), steps = broadcast(step);
  const Ints sign_bit = Ints{} + static_cast<int32_t>(0x80000000u);
  publishing(task.parameter, task.published, begin, end, [&](int64_t from, int64_t to) {
    for (int64_t first = from; first < to; first += word_bits) {
      float* p = task.parameter + first;
      const uint64_t active = walk.word(first, task.piece.count), word = task.words[first / word_bits];
      if (to - first < word_bits) {
        for (int64_t i = 0; i < to - first; ++i) {
          const float signed_step = ((word >> i) & 1) != 0 ? step : -step;
          p[i] = p[i] * keep - (((active >> i) & 1) != 0 ? signed_step : 0.0f);
        }
      } else if (active == ~uint64_t{0}) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < word_bits; i += lanes) {
          const Ints negative = ~lane_mask(word >> i) & sign_bit;
          store(p + i, load(p + i) * keeps - reinterpret_cast<Floats>(reinterpret_cast<Ints>(steps) ^ negative));
        }
      } else {
        for (int64_t i = 0; i < word_bits; i += lanes) {
          const Ints negative = ~lane_mask(word >> i) & sign_bit;
          const Ints masked = (reinterpret_cast<Ints>(steps) ^ negative) & lane_mask(active >> i);
          store(p + i, load(p + i) * keeps - reinterpret_cast<Floats>(masked));
        }
      }
    }
  });
}

void unpack_signs(const UnpackSignsTask& task, int64_t begin, int64_t end, int64_t segment) {
  ActiveWalk walk(task.piece, task.header, begin, segment);
  const Ints one = reinterpret_cast<Ints>(broadcast(1.0f)), sign_bit = Ints{} + static_cast<int32_t>(0x80000000u);
  const uint64_t* const words = task.words;
  for (int64_t first = begin; first < end; first += word_bits) {
    const uint64_t active = walk.word(first, task.piece.count), word = words[first / word_bits];
    float* out = task.out + first;
    if (end - first >= word_bits && active == ~uint64_t{0}) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < word_bits; i += lanes) store(out + i, reinterpret_cast<Floats>(one ^ (~lane_mask(word >> i) & sign_bit)));
      continue;
    }
    for (int64_t i = 0; i < word_bits && i < end - first; i += lanes) {
      const Floats signs = reinterpret_cast<Floats>((one ^ (~lane_mask(word >> i) & sign_bit)) & lane_mask(active >> i));
      if (end - first - i >= lanes)
        store(out + i, signs);
      else
        store_partial(out + i, signs, end - first - i);
    }
  }
}

// Eight elements of int8 at a time, widened where `size`, the bytes of one, is 2 or 4. spread has bit j of the byte in byte
// j; adding 0x7f carries it into the byte's highest bit.
void expand_signs(const uint64_t* words, void* out, int64_t size, int8_t set, int8_t clear, int64_t begin, int64_t end) {
  constexpr uint64_t ones = 0x0101010101010101ull, diagonal = 0x8040201008040201ull;
  const uint64_t sets = ones * static_cast<uint8_t>(set), clears = ones * static_cast<uint8_t>(clear);
  for (int64_t w = begin; w < end; ++w)
    for (int64_t byte = 0; byte < 8; ++byte) {
      const uint64_t spread = (((words[w] >> (8 * byte)) & 0xff) * ones) & diagonal;
      const uint64_t mask = (((spread + 0x7f * ones) >> 7) & ones) * 0xff;
      const uint64_t bytes = (mask & sets) | (~mask & clears);
      char* to = static_cast<char*>(out) + size * (word_bits * w + 8 * byte);
      if (size == 1) {
        __builtin_memcpy(to, &bytes, sizeof bytes);
        continue;
      }
      // Doubled and shifted back, a number keeps its sign.
      const __m128i eight = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
      const __m128i wide = _mm_srai_epi16(_mm_unpacklo_epi8(eight, eight), 8);
      if (size == 2) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), wide);
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_srai_epi32(_mm_unpacklo_epi16(wide, wide), 16));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1, _mm_srai_epi32(_mm_unpackhi_epi16(wide, wide), 16));
      }
    }
}

// `size` bytes an element: 1, 2 or 4. Saturated to bytes, numbers keep their sign and zeros stay zero.
void threshold_signs(const void* in, int64_t size, uint64_t* words, int64_t begin, int64_t end) {
  const __m128i zero = _mm_setzero_si128();
  for (int64_t w = begin; w < end; ++w) {
    const __m128i* from = reinterpret_cast<const __m128i*>(static_cast<const char*>(in) + word_bits * size * w);
    uint64_t bits = 0;
    for (int64_t i = 0; i < 4; ++i) {
      __m128i bytes;
      if (size == 1) {
        bytes = _mm_loadu_si128(from + i);
      } else if (size == 2) {
        bytes = _mm_packs_epi16(_mm_loadu_si128(from + 2 * i), _mm_loadu_si128(from + 2 * i + 1));
      } else {
        bytes = _mm_packs_epi16(_mm_packs_epi32(_mm_loadu_si128(from + 4 * i), _mm_loadu_si128(from + 4 * i + 1)),
                                _mm_packs_epi32(_mm_loadu_si128(from + 4 * i + 2), _mm_loadu_si128(from + 4 * i + 3)));
      }
      bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpgt_epi8(bytes, zero)))) << (16 * i);
    }
    words[w] = bits;
  }
}

}  // namespace dmuon::DMUON_SIMD
