// The format of one-bit votes: how a message of floats becomes words of signs and a header, so that every worker packs the
// same bits from the same numbers and every transport counts the same votes.
//
// Words are 64 bits, little-endian, in tensors of DType::int64; element i of a piece is bit i % 64 of word i / 64, set when
// its sign is +1. A piece starts at a word; the unused bits of its last word are 0 and mean nothing.
//
// The sign of x is +1 when x > 0, -1 when x < 0, and for x == 0 (either zero) that of a hash of (seed, step, parameter,
// index), in which no rank takes part: a constant would be a drift of every element that is exactly zero. (A message with
// NaN is never applied; there NaN packs as 0.)
//
// Rows that are zero on every worker must not move at all, so a header travels with the signs and is combined by OR: bit 0
// says that the piece's message has a NaN or an infinite element, bit 1 + s that segment s has a non-zero one.
#pragma once

#include <cstdint>
#include <string_view>

namespace dmuon {

// A piece: the elements [first, first + count) of a tensor, divided into segments at every multiple of `row_length` and of
// `chunk`, both counted from the tensor's start. Where a plan cuts tensors at multiples of `chunk`, or of rows, segments
// therefore do not depend on the cuts.
struct SignSegments {
  int64_t first = 0, count = 0;
  int64_t row_length = 1;  // of the tensor seen as [rows, columns]; all of its elements when it has one dimension
  int64_t chunk = 16384;
};

// How many segments a piece has; 0 for an empty one.
int64_t segments(const SignSegments& piece);
// The segment that holds element `element` of the piece, 0 <= element < count.
int64_t segment_of(const SignSegments& piece, int64_t element);
// Where that segment ends: the first element of the next one, or count.
int64_t segment_end(const SignSegments& piece, int64_t element);

// Words that `count` signs take, and words that the header of a piece takes; 0 for an empty piece.
int64_t sign_words(int64_t count);
int64_t sign_header_words(const SignSegments& piece);

// Planes of a bit-sliced count that reaches `weight`: the bits of that number.
int sign_count_planes(int64_t weight);

// The key of one parameter in one step, and the sign of a zero at `index` of the whole tensor: true for +1. Independent of
// how the tensor is cut. zero_signs gives 64 of them: bit j belongs to index 64 * block + j.
uint64_t sign_key(uint64_t seed, int64_t step, std::string_view parameter);
bool zero_sign(uint64_t key, int64_t index);
uint64_t zero_signs(uint64_t key, int64_t block);

}  // namespace dmuon
