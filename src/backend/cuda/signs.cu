// One-bit votes: floats to words of signs and back, and counts over words. Whatever touches elements goes through tiles of a
// block: the bits of its words and segments pass through shared memory, so that the divisions which find a segment are done
// once for 64 elements. Compiled without contraction to fused multiply-adds, like optimizer.cu.
#include <array>
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_elements.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

using Word = unsigned long long;
constexpr int word_bits = 64;
constexpr int threads = 256, warps = threads / 32;
constexpr int tile_words = 128, tile_elements = tile_words * word_bits;  // of a block that touches elements
constexpr int header_words = tile_words + 2;                             // that the segments of a tile may touch
constexpr int most_pointers = 256;                                       // of one launch

Word* words_of(const Tensor& tensor) { return reinterpret_cast<Word*>(tensor.data<int64_t>()); }

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

// ----------------------------------------------------------------------------------------------------------------- counting
// A count of 64 elements at once is a set of words, plane j holding bit j of every count. Planes start at 2^top - threshold,
// so that plane `top` is set once the threshold is reached.

// Words by worker, or planes by node.
struct Pointers {
  const Word* at[most_pointers];
  int count;
  int again;  // this one counts twice; -1: none
};
Pointers pointers_of(const std::vector<Tensor>& tensors, size_t begin, size_t end) {
  Pointers pointers{};
  pointers.count = static_cast<int>(end - begin);
  pointers.again = -1;
  for (size_t i = begin; i < end; ++i) pointers.at[i - begin] = words_of(tensors[i]);
  return pointers;
}

template <int planes>
__device__ void add(Word (&count)[planes], Word in) {
#pragma unroll
  for (int j = 0; j < planes; ++j) {
    const Word carry = count[j] & in;
    count[j] ^= in;
    in = carry;
  }
}
template <int planes>
__device__ void add_all(Word (&count)[planes], const Pointers& inputs, int64_t w) {
#pragma unroll 8
  for (int i = 0; i < inputs.count; ++i) add(count, inputs.at[i][w]);
  if (inputs.again >= 0) add(count, inputs.at[inputs.again][w]);
}

__device__ int64_t word_of_thread() { return static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; }

// `weight`: the voters, odd by naming the tie-breaker again; its majority reaches plane planes - 1.
template <int planes>
__global__ void vote_kernel(Pointers inputs, Word* result, int64_t words, int64_t any_words, int weight) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  if (w < any_words) {
    Word any = 0;
    for (int i = 0; i < inputs.count; ++i) any |= inputs.at[i][w];
    result[w] = any;
    return;
  }
  const int start = (1 << (planes - 1)) - (weight / 2 + 1);
  Word count[planes];
#pragma unroll
  for (int j = 0; j < planes; ++j) count[j] = (start >> j & 1) != 0 ? ~Word{0} : Word{0};
  add_all(count, inputs, w);
  result[w] = count[planes - 1];
}

// out: plane after plane of `words` words, the first `out_planes` of the count; further ones are zero.
template <int planes>
__global__ void count_kernel(Pointers inputs, Word* out, int64_t words, int out_planes) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  Word count[planes]{};
  add_all(count, inputs, w);
#pragma unroll
  for (int j = 0; j < planes; ++j)
    if (j < out_planes) out[j * words + w] = count[j];
  for (int j = planes; j < out_planes; ++j) out[j * words + w] = 0;
}

// `pointers.at[n]`: the planes of node n, plane_counts[n] of them.
struct NodePlanes {
  Pointers nodes;
  unsigned char plane_counts[most_pointers];
};
constexpr int most_planes = 33;
__global__ void vote_counts_kernel(NodePlanes in, Word* result, int64_t words, int64_t any_words, int64_t threshold, int top) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  if (w < any_words) {
    Word any = 0;
    for (int n = 0; n < in.nodes.count; ++n)
      for (int j = 0; j < in.plane_counts[n]; ++j) any |= in.nodes.at[n][j * words + w];
    result[w] = any;
    return;
  }
  // In local memory, since only the launch knows how many planes there are; it runs once per step, on few words.
  Word count[most_planes];
  const int64_t start = (int64_t{1} << top) - threshold;
  for (int j = 0; j <= top; ++j) count[j] = (start >> j & 1) != 0 ? ~Word{0} : Word{0};
  for (int n = 0; n < in.nodes.count; ++n) {
    Word carry = 0;
    for (int j = 0; j <= top; ++j) {
      const Word term = j < in.plane_counts[n] ? in.nodes.at[n][j * words + w] : 0;
      const Word half = count[j] ^ term, next = (count[j] & term) | (half & carry);
      count[j] = half ^ carry;
      carry = next;
    }
  }
  result[w] = count[top];
}

// -------------------------------------------------------------------------------------------------- numbers that a sum combines

// Eight elements, a byte of signs, for each thread.
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight {
  T v[8];
};
template <class T>
__global__ void expand_kernel(const unsigned char* bytes, T* out, int64_t count, int64_t any_bytes, int weight, bool at_once) {
  const int64_t i = word_of_thread();
  if (i >= count) return;
  const int set = i < any_bytes ? 1 : weight, clear = i < any_bytes ? 0 : -weight;
  const int signs = bytes[i];
  Eight<T> eight;
  for (int j = 0; j < 8; ++j) eight.v[j] = static_cast<T>((signs >> j & 1) != 0 ? set : clear);
  if (at_once) {
    reinterpret_cast<Eight<T>*>(out)[i] = eight;
    return;
  }
  for (int j = 0; j < 8; ++j) out[8 * i + j] = eight.v[j];
}
template <class T>
__global__ void threshold_kernel(const T* in, unsigned char* bytes, int64_t count, bool at_once) {
  const int64_t i = word_of_thread();
  if (i >= count) return;
  Eight<T> eight;
  if (at_once) {
    eight = reinterpret_cast<const Eight<T>*>(in)[i];
  } else {
    for (int j = 0; j < 8; ++j) eight.v[j] = in[8 * i + j];
  }
  int signs = 0;
  for (int j = 0; j < 8; ++j) signs |= (eight.v[j] > 0 ? 1 : 0) << j;
  bytes[i] = static_cast<unsigned char>(signs);
}

template <class T>
bool movable_by_eight(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Eight<T>) == 0;
}

template <class Body>
void with_integers(const Tensor& tensor, const Body& body) {
  if (tensor.dtype() == DType::int8) return body(tensor.data<int8_t>());
  if (tensor.dtype() == DType::int16) return body(tensor.data<int16_t>());
  if (tensor.dtype() == DType::int32) return body(tensor.data<int32_t>());
  throw ShapeError(text("signs as numbers: expected int8, int16 or int32, found ", tensor.to_string()));
}

std::vector<Tensor> with(std::vector<Tensor> tensors, const Tensor& last) {
  tensors.push_back(last);
  return tensors;
}

// The bits of a number.
int bits_in(int64_t value) { return sign_count_planes(value); }

void start_vote(const Pointers& inputs, Word* result, int64_t words, int64_t any_words, cudaStream_t stream) {
  const int weight = inputs.count + (inputs.again >= 0 ? 1 : 0), threshold = weight / 2 + 1;
  const auto start = [&](auto kernel) {
    launch({"vote_signs", blocks_for(words, threads), dim3(threads), 0, stream}, kernel, inputs, result, words, any_words, weight);
  };
  // Plane `top` with 2^top at least the threshold; counts stay below twice the threshold.
  if (threshold <= 1) return start(vote_kernel<1>);
  if (threshold <= 2) return start(vote_kernel<2>);
  if (threshold <= 4) return start(vote_kernel<3>);
  if (threshold <= 8) return start(vote_kernel<4>);
  if (threshold <= 16) return start(vote_kernel<5>);
  start(vote_kernel<9>);
}

void start_count(const Pointers& inputs, Word* out, int64_t words, int out_planes, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch({"count_signs", blocks_for(words, threads), dim3(threads), 0, stream}, kernel, inputs, out, words, out_planes);
  };
  const int planes = bits_in(inputs.count + 1);
  if (planes <= 2) return start(count_kernel<2>);
  if (planes <= 3) return start(count_kernel<3>);
  if (planes <= 5) return start(count_kernel<5>);
  start(count_kernel<9>);
}

void start_vote_counts(const NodePlanes& in, Word* result, int64_t words, int64_t any_words, int64_t total_weight, cudaStream_t stream) {
  const int64_t threshold = total_weight / 2 + 1;
  const int top = bits_in(threshold - 1);  // the least with 2^top >= threshold
  launch({"vote_counts", blocks_for(words, threads), dim3(threads), 0, stream}, vote_counts_kernel, in, result, words, any_words, threshold,
         top);
}

}  // namespace

void Signs::pack(Stream& stream, const PackSigns& p) {
  backend_.enqueue(stream, "pack_signs", 0, {p.in, p.words, p.header}, [&](cudaStream_t handle) {
    if (p.segments.count == 0) return;
    check(cudaMemsetAsync(p.header.raw(), 0, static_cast<size_t>(p.header.bytes()), handle), "zeros of a header of signs");
    const auto start = [&](const auto* in) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(in)>>;
      launch({"pack_signs", blocks_for(p.segments.count, tile_elements), dim3(threads), 0, handle}, pack_kernel<T>, in, words_of(p.words),
             words_of(p.header), piece_of(p.segments), Word{p.key});
    };
    if (p.in.dtype() == DType::bfloat16)
      start(reinterpret_cast<const __nv_bfloat16*>(p.in.data<bfloat16>()));
    else
      start(static_cast<const float*>(p.in.data<float>()));
  });
}

void Signs::vote(Stream& stream, const VoteSigns& v) {
  const int64_t words = v.result.elements();
  const size_t workers = v.inputs.size();
  const bool even = workers % 2 == 0;
  if (workers <= most_pointers) {
    backend_.enqueue(stream, "vote_signs", 0, with(v.inputs, v.result), [&](cudaStream_t handle) {
      Pointers inputs = pointers_of(v.inputs, 0, workers);
      if (even) inputs.again = v.tie_breaker;
      start_vote(inputs, words_of(v.result), words, v.any_words, handle);
    });
    return;
  }
  // More than a launch takes: counts of groups of workers, and the vote over those.
  const size_t groups = (workers + most_pointers - 1) / most_pointers;
  VoteCounts counts;
  for (size_t group = 0; group < groups; ++group) {
    const size_t begin = workers * group / groups, end = workers * (group + 1) / groups;
    CountSigns count;
    count.inputs.assign(v.inputs.begin() + static_cast<std::ptrdiff_t>(begin), v.inputs.begin() + static_cast<std::ptrdiff_t>(end));
    const auto tie_breaker = static_cast<size_t>(v.tie_breaker);
    if (even && tie_breaker >= begin && tie_breaker < end) count.twice = static_cast<int>(tie_breaker - begin);
    count.planes = backend_.workspace(bits_in(static_cast<int64_t>(end - begin) + 1) * words, DType::int64, "counts of votes");
    this->count(stream, count);
    counts.planes.push_back(count.planes);
  }
  counts.result = v.result, counts.any_words = v.any_words;
  counts.total_weight = static_cast<int64_t>(workers) + (even ? 1 : 0);
  vote_counts(stream, counts);
}

void Signs::count(Stream& stream, const CountSigns& c) {
  if (c.inputs.size() > most_pointers)
    throw DeviceError(text("count_signs: ", c.inputs.size(), " workers in one call, at most ", most_pointers, "; count them in groups"));
  backend_.enqueue(stream, "count_signs", 0, with(c.inputs, c.planes), [&](cudaStream_t handle) {
    const int64_t words = c.inputs[0].elements();
    if (words == 0) return;
    Pointers inputs = pointers_of(c.inputs, 0, c.inputs.size());
    inputs.again = c.twice;
    start_count(inputs, words_of(c.planes), words, static_cast<int>(c.planes.elements() / words), handle);
  });
}

void Signs::vote_counts(Stream& stream, const VoteCounts& v) {
  if (v.planes.size() > most_pointers)
    throw DeviceError(text("vote_counts: ", v.planes.size(), " nodes in one call, at most ", most_pointers));
  backend_.enqueue(stream, "vote_counts", 0, with(v.planes, v.result), [&](cudaStream_t handle) {
    const int64_t words = v.result.elements();
    if (words == 0) return;
    NodePlanes in{};
    in.nodes = pointers_of(v.planes, 0, v.planes.size());
    for (size_t n = 0; n < v.planes.size(); ++n) in.plane_counts[n] = static_cast<unsigned char>(v.planes[n].elements() / words);
    start_vote_counts(in, words_of(v.result), words, v.any_words, v.total_weight, handle);
  });
}

void Signs::expand(Stream& stream, const ExpandSigns& e) {
  backend_.enqueue(stream, "expand_signs", 0, {e.words, e.out}, [&](cudaStream_t handle) {
    with_integers(e.out, [&](auto* out) {
      using T = std::remove_pointer_t<decltype(out)>;
      const int64_t bytes = 8 * e.words.elements();
      launch({"expand_signs", blocks_for(bytes, threads), dim3(threads), 0, handle}, expand_kernel<T>,
             reinterpret_cast<const unsigned char*>(words_of(e.words)), out, bytes, 8 * e.any_words, e.weight, movable_by_eight(out));
    });
  });
}

void Signs::threshold(Stream& stream, const ThresholdSigns& t) {
  backend_.enqueue(stream, "threshold_signs", 0, {t.in, t.words}, [&](cudaStream_t handle) {
    with_integers(t.in, [&](auto* in) {
      using T = std::remove_pointer_t<decltype(in)>;
      const int64_t bytes = 8 * t.words.elements();
      launch({"threshold_signs", blocks_for(bytes, threads), dim3(threads), 0, handle}, threshold_kernel<T>, in,
             reinterpret_cast<unsigned char*>(words_of(t.words)), bytes, movable_by_eight(in));
    });
  });
}

void Signs::apply(Stream& stream, const ApplySigns& a) {
  backend_.enqueue(stream, "apply_signs", 0, {a.parameter, a.words, a.header, a.hyper, a.published}, [&](cudaStream_t handle) {
    if (a.segments.count == 0) return;
    float* parameter = a.parameter.data<float>();
    launch({"apply_signs", blocks_for(a.segments.count, tile_elements), dim3(threads), 0, handle}, apply_kernel, parameter,
           words_of(a.words), words_of(a.header), piece_of(a.segments), a.hyper.data<double>(), published_copy(a.published),
           movable_by_four(parameter));
  });
}

void Signs::unpack(Stream& stream, const UnpackSigns& u) {
  backend_.enqueue(stream, "unpack_signs", 0, {u.words, u.header, u.out}, [&](cudaStream_t handle) {
    if (u.segments.count == 0) return;
    float* out = u.out.data<float>();
    launch({"unpack_signs", blocks_for(u.segments.count, tile_elements), dim3(threads), 0, handle}, unpack_kernel, out, words_of(u.words),
           words_of(u.header), piece_of(u.segments), movable_by_four(out));
  });
}

}  // namespace dmuon::cuda
