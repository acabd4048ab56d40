// One-bit votes: floats to words of signs and back. Whatever touches elements goes through tiles of a block: the bits of its words and
// segments pass through shared memory, so that the divisions which find a segment are done once for 64 elements. Compiled without
// contraction to fused multiply-adds, like optimizer.cu.
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_elements.h"
#include "backend/cuda/sign_words.h"

namespace dmuon::cuda {
namespace {

using Word = SignWord;
constexpr int word_bits = sign_word_bits;
constexpr int threads = sign_threads, warps = threads / 32;
constexpr int tile_words = 128, tile_elements = tile_words * word_bits;  // of a block that touches elements
constexpr int header_words = tile_words + 2;                             // that the segments of a tile may touch

// The hash of signs.h; bit j is the sign of a zero at index + j.
__device__ Word mix(Word z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
__device__ Word zero_signs_from(Word key, int64_t index) {
  const Word block = static_cast<Word>(index) / word_bits;
  const int shift = static_cast<int>(index % word_bits);
  const Word here = mix(key ^ mix(block)) >> shift;
  return shift == 0 ? here : here | mix(key ^ mix(block + 1)) << (word_bits - shift);
}

// The lowest `count` bits, 0 <= count <= 64.
__device__ Word low_bits(int64_t count) { return count >= word_bits ? ~Word{0} : (Word{1} << count) - 1; }

// A piece and how its boundaries are counted: multiples of the row length or of the chunk, common ones once.
struct Piece {
  int64_t first, count, row_length, chunk;
  int64_t common;             // least common multiple, 0 beyond the range of indices
  int64_t boundaries_before;  // in (0, first]
};
__host__ __device__ int64_t boundaries(const Piece& piece, int64_t index) {
  return index / piece.row_length + index / piece.chunk - (piece.common > 0 ? index / piece.common : 0);
}
Piece piece_of(const SignSegments& segments) {
  Piece piece{segments.first, segments.count, segments.row_length, segments.chunk, 0, 0};
  const int64_t rows_to_common = piece.chunk / std::gcd(piece.row_length, piece.chunk);
  if (piece.row_length <= INT64_MAX / rows_to_common) piece.common = piece.row_length * rows_to_common;
  piece.boundaries_before = boundaries(piece, piece.first);
  return piece;
}
__device__ int64_t segment_at(const Piece& piece, int64_t element) {
  return boundaries(piece, piece.first + element) - piece.boundaries_before;
}

// Calls body(segment, its bits) for every segment in the word of the elements `first` .. `first` + 63, in order; bits of
// elements past the piece are left out.
template <class Body>
__device__ void for_segments(const Piece& piece, int64_t first, const Body& body) {
  const int64_t count = piece.count - first < word_bits ? piece.count - first : word_bits;
  const int64_t index = piece.first + first;
  int64_t segment = segment_at(piece, first), begin = 0;
  int64_t row_end = piece.row_length - index % piece.row_length, chunk_end = piece.chunk - index % piece.chunk;
  while (begin < count) {
    const int64_t nearest = row_end < chunk_end ? row_end : chunk_end, end = nearest < count ? nearest : count;
    body(segment, low_bits(end) & ~low_bits(begin));
    if (row_end == nearest) row_end += piece.row_length;
    if (chunk_end == nearest) chunk_end += piece.chunk;
    begin = end, ++segment;
  }
}

// The words of this block's tile: [first, first + count) of a piece.
struct Tile {
  int64_t first;
  int count;
};
__device__ Tile tile_of(const Piece& piece) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile_words;
  const int64_t left = (piece.count + word_bits - 1) / word_bits - first;
  return {first, static_cast<int>(left < tile_words ? left : tile_words)};
}

// ------------------------------------------------------------------------------------------------------------------ packing

// Each warp packs whole words, a ballot for 32 elements. The header is set bit by bit from shared memory; it is zero before.
template <class T>
__global__ void pack_kernel(const T* in, Word* words, Word* header, Piece piece, Word key) {
  DMUON_SHARED(Word, non_zero, tile_words);
  DMUON_SHARED(Word, segment_bits, header_words);
  const Tile tile = tile_of(piece);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int w = static_cast<int>(threadIdx.x); w < header_words; w += threads) segment_bits[w] = 0;
  bool non_finite = false;
#pragma unroll 4
  for (int w = warp; w < tile.count; w += warps) {
    Word positive = 0, zero = 0;
    const int64_t first = (tile.first + w) * word_bits;
    for (int part = 0; part < 2; ++part) {
      const int64_t i = first + 32 * part + lane;
      const bool inside = i < piece.count;
      const float x = inside ? widen(in[i]) : 0.0f;
      positive |= static_cast<Word>(__ballot_sync(~0u, x > 0.0f)) << (32 * part);
      zero |= static_cast<Word>(__ballot_sync(~0u, x == 0.0f)) << (32 * part);
      non_finite = non_finite || !(x - x == 0.0f);
    }
    const Word mask = low_bits(piece.count - first);
    if ((zero & mask) != 0) positive |= zero & mask & zero_signs_from(key, piece.first + first);
    if (lane == 0) {
      words[tile.first + w] = positive;
      non_zero[w] = ~zero & mask;
    }
  }
  const bool any_non_finite = __any_sync(~0u, non_finite);
  if (any_non_finite && lane == 0) atomicOr(header, Word{1});
  __syncthreads();
  // Bit 1 + s of the header, counted from the word that holds the tile's first segment.
  const int64_t header_first = (1 + segment_at(piece, tile.first * word_bits)) / word_bits;
  for (int w = static_cast<int>(threadIdx.x); w < tile.count; w += threads) {
    const Word set = non_zero[w];
    for_segments(piece, (tile.first + w) * word_bits, [&](int64_t segment, Word bits) {
      const int64_t bit = 1 + segment;
      if ((set & bits) != 0) atomicOr(&segment_bits[static_cast<int>(bit / word_bits - header_first)], Word{1} << (bit % word_bits));
    });
  }
  __syncthreads();
  for (int w = static_cast<int>(threadIdx.x); w < header_words; w += threads) {
    const Word bits = segment_bits[w];
    if (bits != 0) atomicOr(header + header_first + w, bits);
  }
}

// ----------------------------------------------------------------------------------------------------------------- applying

// Bit i: element i of the word lies in a segment that the header calls non-zero.
__device__ Word active_bits(const Piece& piece, const Word* header, int64_t first) {
  Word active = 0;
  for_segments(piece, first, [&](int64_t segment, Word bits) {
    const int64_t bit = 1 + segment;
    if ((header[bit / word_bits] >> (bit % word_bits) & 1) != 0) active |= bits;
  });
  return active;
}

// Calls body(i, count, four signs, four active bits) for this thread's groups of up to four elements of the block's tile.
template <class Body>
__device__ void for_sign_groups(const Piece& piece, const Word* words, const Word* header, const Body& body) {
  DMUON_SHARED(Word, signs, tile_words);
  DMUON_SHARED(Word, active, tile_words);
  const Tile tile = tile_of(piece);
  for (int w = static_cast<int>(threadIdx.x); w < tile.count; w += threads) {
    signs[w] = words[tile.first + w];
    active[w] = active_bits(piece, header, (tile.first + w) * word_bits);
  }
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < tile_elements / 4; group += threads) {
    const int64_t i = tile.first * word_bits + 4 * group;
    if (i >= piece.count) return;
    const int w = 4 * group / word_bits, shift = 4 * group % word_bits;
    body(i, static_cast<int>(piece.count - i < 4 ? piece.count - i : 4), static_cast<unsigned>(signs[w] >> shift),
         static_cast<unsigned>(active[w] >> shift));
  }
}

__global__ void apply_kernel(float* parameter, const Word* words, const Word* header, Piece piece, const double* hyper,
                             PublishedCopy published, bool at_once) {
  const float keep = static_cast<float>(1.0 - hyper[ApplySigns::learning_rate] * hyper[ApplySigns::weight_decay]);
  const float step = static_cast<float>(hyper[ApplySigns::learning_rate] * hyper[ApplySigns::scale]);
  for_sign_groups(piece, words, header, [&](int64_t i, int count, unsigned signs, unsigned active) {
    Four<float> p = load_four(parameter, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const float signed_step = (signs >> j & 1) != 0 ? step : -step;
      p.v[j] = p.v[j] * keep - ((active >> j & 1) != 0 ? signed_step : 0.0f);
    }
    store_four(parameter, i, count, at_once, p);
    published.store(i, count, p);
  });
}

__global__ void unpack_kernel(float* out, const Word* words, const Word* header, Piece piece, bool at_once) {
  for_sign_groups(piece, words, header, [&](int64_t i, int count, unsigned signs, unsigned active) {
    Four<float> four{};
    for (int j = 0; j < 4; ++j) four.v[j] = (active >> j & 1) == 0 ? 0.0f : (signs >> j & 1) != 0 ? 1.0f : -1.0f;
    store_four(out, i, count, at_once, four);
  });
}

}  // namespace

void Signs::pack(Stream& stream, const PackSigns& p) {
  backend_.enqueue(stream, "pack_signs", 0, {p.in, p.words, p.header}, [&](cudaStream_t handle) {
    if (p.segments.count == 0) return;
    check(cudaMemsetAsync(p.header.raw(), 0, static_cast<size_t>(p.header.bytes()), handle), "zeros of a header of signs");
    const auto start = [&](const auto* in) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(in)>>;
      launch({"pack_signs", blocks_for(p.segments.count, tile_elements), dim3(threads), 0, handle}, pack_kernel<T>, in,
             sign_words_of(p.words), sign_words_of(p.header), piece_of(p.segments), Word{p.key});
    };
    if (p.in.dtype() == DType::bfloat16)
      start(reinterpret_cast<const __nv_bfloat16*>(p.in.data<bfloat16>()));
    else
      start(static_cast<const float*>(p.in.data<float>()));
  });
}
void Signs::apply(Stream& stream, const ApplySigns& a) {
  backend_.enqueue(stream, "apply_signs", 0, {a.parameter, a.words, a.header, a.hyper, a.published}, [&](cudaStream_t handle) {
    if (a.segments.count == 0) return;
    float* parameter = a.parameter.data<float>();
    launch({"apply_signs", blocks_for(a.segments.count, tile_elements), dim3(threads), 0, handle}, apply_kernel, parameter,
           sign_words_of(a.words), sign_words_of(a.header), piece_of(a.segments), a.hyper.data<double>(), published_copy(a.published),
           movable_by_four(parameter));
  });
}

void Signs::unpack(Stream& stream, const UnpackSigns& u) {
  backend_.enqueue(stream, "unpack_signs", 0, {u.words, u.header, u.out}, [&](cudaStream_t handle) {
    if (u.segments.count == 0) return;
    float* out = u.out.data<float>();
    launch({"unpack_signs", blocks_for(u.segments.count, tile_elements), dim3(threads), 0, handle}, unpack_kernel, out,
           sign_words_of(u.words), sign_words_of(u.header), piece_of(u.segments), movable_by_four(out));
  });
}

}  // namespace dmuon::cuda
