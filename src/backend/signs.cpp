#include "dmuon/backend/sign_segments.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "dmuon/core/random.h"

namespace dmuon {
namespace {

constexpr int64_t word_bits = 64;

// Boundaries in (0, index]: multiples of the row length or of the chunk, common ones counted once.
int64_t boundaries(const SignSegments& piece, int64_t index) {
  const int64_t rows_to_common = piece.chunk / std::gcd(piece.row_length, piece.chunk);
  const bool common_in_range = piece.row_length <= std::numeric_limits<int64_t>::max() / rows_to_common;
  const int64_t common = common_in_range ? index / (piece.row_length * rows_to_common) : 0;
  return index / piece.row_length + index / piece.chunk - common;
}

}  // namespace

int64_t segments(const SignSegments& piece) { return piece.count > 0 ? segment_of(piece, piece.count - 1) + 1 : 0; }

int64_t segment_of(const SignSegments& piece, int64_t element) {
  return boundaries(piece, piece.first + element) - boundaries(piece, piece.first);
}

int64_t segment_end(const SignSegments& piece, int64_t element) {
  const int64_t index = piece.first + element;
  const int64_t to_row = piece.row_length - index % piece.row_length, to_chunk = piece.chunk - index % piece.chunk;
  return element + std::min({to_row, to_chunk, piece.count - element});
}

SignSegments sign_segments(const Shape& shape, int64_t first, int64_t count, int64_t chunk) {
  const int64_t columns = shape.rank() > 1 && shape[0] > 0 ? shape.elements() / shape[0] : shape.elements();
  return {first, count, std::max<int64_t>(columns, 1), chunk};
}

int64_t sign_words(int64_t count) { return count / word_bits + (count % word_bits != 0 ? 1 : 0); }

int64_t sign_header_words(const SignSegments& piece) { return piece.count > 0 ? sign_words(1 + segments(piece)) : 0; }

int sign_count_planes(int64_t weight) { return std::bit_width(static_cast<uint64_t>(weight)); }

uint64_t sign_key(uint64_t seed, int64_t step, std::string_view parameter) {
  return Random(seed, RandomStream::tie, hash_name(parameter)).bits(static_cast<uint64_t>(step));
}

uint64_t zero_signs(uint64_t key, int64_t block) { return mix64(key ^ mix64(static_cast<uint64_t>(block))); }

bool zero_sign(uint64_t key, int64_t index) { return ((zero_signs(key, index / word_bits) >> (index % word_bits)) & 1) != 0; }

}  // namespace dmuon
