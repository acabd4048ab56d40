// What collectives through NCCL stage in device memory, for those who make them and for predictions of memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dmuon/core/checked.h"

namespace dmuon::nccl {

// Elements: segments of a staging buffer begin at multiples of it.
constexpr int64_t piece_alignment = 64;

// A reduction whose terms travel in pieces. A rank stages `ranks` places of `stride` elements.
struct ReductionPieces {
  int64_t piece = 0;   // elements of every segment that travel at once; the same on every rank, so that all cut alike
  int64_t stride = 0;  // between the places; no more than the own segment needs
};

// `longest`: the longest segment; `own`: this rank's.
inline ReductionPieces reduction_pieces(int64_t ranks, int64_t longest, int64_t own, int64_t element_bytes) {
  constexpr int64_t most_bytes = int64_t{32} << 20;  // of all places together
  const int64_t fitting = most_bytes / ranks / element_bytes / piece_alignment * piece_alignment;
  const int64_t piece = std::min(std::max(fitting, piece_alignment), round_up(longest, piece_alignment));
  return {piece, std::min(piece, round_up(own, piece_alignment))};
}

}  // namespace dmuon::nccl
