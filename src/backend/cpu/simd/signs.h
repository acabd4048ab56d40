// Arguments of the sign kernels (sign_kernels.h). A piece is worked on in ranges of elements [begin, end) that begin at a
// word; `segment` is the one that holds element `begin`. Results do not depend on the ranges.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/optimizer.h"

namespace dmuon::simd {

// Elements [first, first + count) of a tensor and where their segments end (SignSegments).
struct SignPiece {
  int64_t first = 0, count = 0, row_length = 1, chunk = 1;
};

struct PackSignsTask {
  const uint32_t* float32 = nullptr;  // the bits of the message; one of the two is set
  const uint16_t* bfloat16 = nullptr;
  uint64_t* words = nullptr;
  uint64_t* header = nullptr;  // cleared before; ranges set their bits atomically
  SignPiece piece;
  uint64_t key = 0;
};
struct ApplySignsTask {
  float* parameter = nullptr;
  const uint64_t *words = nullptr, *header = nullptr;
  SignPiece piece;
  float keep, step;  // 1 - learning_rate * weight_decay, learning_rate * scale
  Published published;
};
struct UnpackSignsTask {
  const uint64_t *words = nullptr, *header = nullptr;
  float* out = nullptr;
  SignPiece piece;
};

// Words of several workers. An even number of them is made odd by naming the tie-breaker twice.
struct SignInputs {
  const uint64_t* const* words = nullptr;
  int64_t count = 0;
};
struct SignPlanes {
  uint64_t* planes = nullptr;  // plane j begins at planes + j * words
  int64_t count = 0, words = 0;
};

}  // namespace dmuon::simd
