// Floats to words of signs and back. Compiled without contraction to fused multiply-adds (see optimizer.h).
#include "backend/cpu/simd/signs.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/publishing.h"
#include "backend/cpu/simd/sign_bits.h"

namespace dmuon::DMUON_SIMD {
namespace {

typedef uint64_t Quads __attribute__((vector_size(lanes * 4)));
constexpr int64_t quad_lanes = lanes / 2;

// Zeros come in crowds, and a guess which word has some costs more, where it fails, than to look for them. So words are looked through
// for zeros in runs of this length, until one has none.
constexpr int64_t run_words = 16;

// The two halves of the hash of signs.h, here once more because these files share no code with others (see vector.h).
template <class T>
inline T mix_begin(T z) {
  z += 0x9e3779b97f4a7c15ull;
  return (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
}
template <class T>
inline T mix_end(T z) {
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The signs of zeros, word after word in groups: bit j of the first word is that of the element at `index` + j of its tensor. The hash is
// the mixture of a mixture. The inner ones are computed in vectors, in steps between the words of the group before, the outer ones one by
// one: so both kinds of units of the processor have something to do, and little enough at a time.
class ZeroSigns {
 public:
  static constexpr int64_t group = quad_lanes;

  ZeroSigns(uint64_t key, uint64_t index) : key_(key), blocks_(Quads{} + index / word_bits), shift_(index % word_bits) {
    if (shift_ != 0) here_ = mix_end(mix_begin(key_ ^ mix_end(mix_begin(index / word_bits))));
    for (int64_t i = 0; i < group; ++i) blocks_[i] += static_cast<uint64_t>(i + (shift_ != 0 ? 1 : 0));
    first_step();
    second_step();
    next();
  }

  // Each word i of a group once and in order; the steps towards the next group are done while this one's words are in use.
  uint64_t word(int64_t i) {
    const uint64_t hash = mix_end(mix_begin(key_ ^ inner_[i]));
    if (shift_ == 0) return hash;
    const uint64_t across = here_ >> shift_ | hash << (word_bits - shift_);  // the word lies across two blocks of the hash
    here_ = hash;
    return across;
  }
  void first_step() {
    next_ = mix_begin(blocks_);
    blocks_ += static_cast<uint64_t>(group);
  }
  void second_step() { next_ = mix_end(next_); }
  void next() { __builtin_memcpy(inner_, &next_, sizeof next_); }

 private:
  uint64_t key_;
  Quads blocks_, next_{};
  uint64_t shift_, here_ = 0;
  uint64_t inner_[group];
};

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
template <class Bits>
inline bool has_non_finite(const Bits* in) {
  using F = Format<Bits>;
  typename F::Vector found{};
  for (int64_t i = 0; i < F::vectors; ++i)
    found |= reinterpret_cast<typename F::Vector>((reinterpret_cast<const typename F::Unaligned*>(in)[i] & F::magnitude) >= F::infinity);
  return any(found);
}

// Signs and zeros of words, right where all elements are numbers; suspicious() where some may be none. Group by group, so that the
// vectors stay in registers.
template <class Bits>
class WordScan;

// Adding +0 makes -0 the same as +0 and leaves the other signs, so one packing serves signs and zeros. A product with an infinity or NaN
// is one as well, and so is every sum with it; numbers that are very large may overflow too.
template <>
class WordScan<uint32_t> {
 public:
  WordSigns word(const uint32_t* in) {
    WordSigns signs{};
#pragma GCC unroll 4
    for (int64_t g = 0; g < word_bits / single_group; ++g) {
      Floats x[single_group_vectors];
#pragma GCC unroll 4
      for (int64_t i = 0; i < single_group_vectors; ++i)
        x[i] = load(reinterpret_cast<const float*>(in) + single_group * g + lanes * i) + Floats{};
#pragma GCC unroll 4
      for (int64_t i = 0; i < single_group_vectors; i += 2) sums_[i] = multiply_add(x[i], x[(i + 1) % single_group_vectors], sums_[i]);
      Singles v[single_group_vectors];
#pragma GCC unroll 4
      for (int64_t i = 0; i < single_group_vectors; ++i) v[i] = reinterpret_cast<Singles>(x[i]);
      signs.positive |= group_signs(v) << (single_group * g);
      signs.zero |= group_zeros(v) << (single_group * g);
    }
    signs.positive = ~(signs.positive | signs.zero);
    return signs;
  }
  bool suspicious() const {
    Floats sum{};
    for (const Floats& some : sums_) sum += some;
    return any(sum - sum != Floats{});
  }

 private:
  Floats sums_[single_group_vectors] = {};  // several, because every addition waits for the one before
};

template <>
class WordScan<uint16_t> {
  using F = Format<uint16_t>;

 public:
  WordSigns word(const uint16_t* in) {
    const auto* vectors = reinterpret_cast<const F::Unaligned*>(in);
    WordSigns signs{};
#pragma GCC unroll 4
    for (int64_t g = 0; g < word_bits / half_group; ++g) {
      Halves v[half_group_vectors], magnitude[half_group_vectors];
#pragma GCC unroll 4
      for (int64_t i = 0; i < half_group_vectors; ++i) {
        v[i] = vectors[half_group_vectors * g + i];
        magnitude[i] = v[i] & F::magnitude;
        const auto comparable = reinterpret_cast<F::Signed>(magnitude[i]);
        largest_ = comparable > largest_ ? comparable : largest_;
      }
      signs.positive |= group_signs(v) << (half_group * g);
      signs.zero |= group_zeros(magnitude) << (half_group * g);
    }
    signs.positive = ~(signs.positive | signs.zero);
    return signs;
  }
  bool suspicious() const { return any(largest_ >= F::Signed{} + static_cast<int16_t>(F::infinity)); }

 private:
  F::Signed largest_{};
};

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
      first = words_of_zeros(first, whole);
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

  // Up to the end of a run without zeros. Runs end at multiples of their length, where rows often end.
  int64_t words_of_zeros(int64_t first, int64_t end) {
    constexpr int64_t run = run_words * word_bits;
    const int64_t run_end = first - first % run + run, until = run_end < end ? run_end : end;
    if (until - first < run) {
      if (part_of_run(first, (until - first) / word_bits) == 0) return until;
      first = until;
    }
    if (end - first >= run) {
      ZeroSigns zero_signs(key_, tensor_first_ + static_cast<uint64_t>(first));
      for (; end - first >= run; first += run)
        if (whole_run(first, zero_signs) == 0) return first + run;
    }
    if (first < end) part_of_run(first, (end - first) / word_bits);
    return end;
  }

  // What a run keeps for its header: its zeros; `any` has a bit set where there were zeros, `non_zero` where something else was.
  struct Run {
    uint64_t zeros[run_words];
    uint64_t any = 0, non_zero = 0;
  };

  // Both return `any`.
  uint64_t whole_run(int64_t first, ZeroSigns& zero_signs) {
    const Bits* in = in_ + first;
    uint64_t* out = words_ + first / word_bits;
    Run run;
    WordScan<Bits> scan;
    ZeroSigns signs = zero_signs;
    for (int64_t i = 0; i < run_words; i += ZeroSigns::group, in += ZeroSigns::group * word_bits, out += ZeroSigns::group) {
#pragma GCC unroll 8
      for (int64_t j = 0; j < ZeroSigns::group; ++j) {
        prefetch(in + word_bits * j);
        const WordSigns word = scan.word(in + word_bits * j);
        out[j] = word.positive | (word.zero & signs.word(j));
        run.zeros[i + j] = word.zero;
        if (j == 0) signs.first_step();
        if (j == 1) signs.second_step();
      }
      signs.next();
    }
    zero_signs = signs;
    return finish(first, run_words, run, scan);
  }
  __attribute__((noinline)) uint64_t part_of_run(int64_t first, int64_t words) {
    ZeroSigns signs(key_, tensor_first_ + static_cast<uint64_t>(first));
    Run run;
    WordScan<Bits> scan;
    for (int64_t i = 0; i < words; ++i) {
      const WordSigns word = scan.word(in_ + first + word_bits * i);
      words_[first / word_bits + i] = word.positive | (word.zero & signs.word(i % ZeroSigns::group));
      run.zeros[i] = word.zero;
      if ((i + 1) % ZeroSigns::group != 0) continue;
      signs.first_step();
      signs.second_step();
      signs.next();
    }
    return finish(first, words, run, scan);
  }
  uint64_t finish(int64_t first, int64_t words, Run& run, const WordScan<Bits>& scan) {
    if (__builtin_expect(scan.suspicious(), 0)) non_numbers(first, words);
    for (int64_t i = 0; i < words; ++i) {
      run.any |= run.zeros[i];
      run.non_zero |= ~run.zeros[i];
    }
    mark_run(first, words, run.zeros, run.non_zero);
    return run.any;
  }
  __attribute__((noinline)) void non_numbers(int64_t first, int64_t words) {
    for (int64_t i = first; i < first + word_bits * words; i += word_bits) {
      if (!has_non_finite(in_ + i)) continue;
      header_.set(0);
      words_[i / word_bits] &= ~nan_bits(in_ + i);
    }
  }
  void mark_run(int64_t first, int64_t words, const uint64_t* zeros, uint64_t any_non_zero) {
    const int64_t end = first + word_bits * words;
    if (walk_.end() >= end) {
      mark_inside(end, any_non_zero);
      return;
    }
    if (words == run_words && no_half_is_zero(zeros) && segments_are_non_zero(first, end, zeros)) {
      const int64_t segment = walk_.segment();
      walk_.advance_to(end - 1);
      header_.set_range(1 + segment, 1 + walk_.segment());
      if (walk_.end() == end) walk_.advance();
      return;
    }
    for (int64_t i = 0; i < words;) {
      // Words that lie in one segment.
      const int64_t inside = (walk_.end() - first) / word_bits, last = inside < words ? inside : words;
      uint64_t non_zero = 0;
      for (; i < last; ++i) non_zero |= ~zeros[i];
      mark_inside(first + word_bits * i, non_zero);
      if (i < words && walk_.end() < first + word_bits * (i + 1)) {
        mark(first + word_bits * i, word_bits, ~zeros[i]);
        ++i;
      }
    }
  }

  // Whether every half word of a run has an element that is not zero: then so has whatever is 63 elements long.
  static bool no_half_is_zero(const uint64_t* zeros) {
    Ints found{};
    for (int64_t i = 0; i < run_words; i += quad_lanes) {
      Ints halves;
      __builtin_memcpy(&halves, zeros + i, sizeof halves);
      found |= halves == -1;
    }
    return !any(found);
  }
  // Of a run without such a half, in which at least one segment ends: whether that is enough to know all its segments for non-zero. Those
  // of narrow rows and those that a chunk cuts short are left to a closer look.
  bool segments_are_non_zero(int64_t first, int64_t end, const uint64_t* zeros) const {
    constexpr int64_t enough = 63;
    if (walk_.row_length() < enough || walk_.chunk_end() < end) return false;
    const int64_t before = walk_.end() - first, behind = end - walk_.last_row(end);
    return (before >= enough || (~zeros[0] & low_bits(before)) != 0) &&
           (behind >= enough || ~zeros[run_words - 1] >> (word_bits - behind) != 0);
  }

  void last_word(int64_t first, int64_t count) {
    Bits padded[word_bits];
    for (int64_t i = 0; i < word_bits; ++i) padded[i] = i < count ? in_[first + i] : Bits{1};
    WordScan<Bits> scan;
    const WordSigns signs = scan.word(padded);
    const uint64_t word = signs.positive | (signs.zero & ZeroSigns(key_, tensor_first_ + static_cast<uint64_t>(first)).word(0));
    words_[first / word_bits] = word & ~nan_bits(padded) & low_bits(count);
    if (has_non_finite(padded)) header_.set(0);
    mark(first, count, ~signs.zero & low_bits(count));
  }

  // Elements up to `end`, all of one segment, which may end there; some bit of non_zero is set where one of them is not zero.
  void mark_inside(int64_t end, uint64_t non_zero) {
    if (non_zero != 0) header_.set(1 + walk_.segment());
    if (walk_.end() == end) walk_.advance();
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
