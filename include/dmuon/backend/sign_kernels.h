// The kernels of one-bit votes; the format of words, headers and segments is that of signs.h, the conventions are those of
// kernels.h. All are thread-count invariant. "Words" are tensors of DType::int64 of one dimension. With `any_words` > 0 the
// first any_words words of a buffer are headers, whose bits are combined by OR; the others are signs, whose bits are voted on.
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/backend/signs.h"
#include "dmuon/backend/stream.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

// Signs and header of one piece of a message.
struct PackSigns {
  Tensor in;      // float32 or bfloat16, segments.count elements
  Tensor words;   // [sign_words(count)]
  Tensor header;  // [sign_header_words(segments)]
  SignSegments segments;
  uint64_t key = 0;  // sign_key of the parameter and the step
};

// Every bit is what most inputs have; of an even number, a tie goes to input `tie_breaker`. One input: a copy.
struct VoteSigns {
  std::vector<Tensor> inputs;  // by worker, each [w]
  Tensor result;               // [w]; may be one of the inputs
  int64_t any_words = 0;
  int tie_breaker = 0;
};

// Bit-sliced counts: plane j holds bit j of every element's number of set inputs. They add up exactly between nodes.
struct CountSigns {
  std::vector<Tensor> inputs;  // at least one, each [w]
  Tensor planes;               // [c * w], plane after plane; c >= sign_count_planes(number of inputs, + 1 with `twice`)
  int twice = -1;              // this input counts twice: the tie-breaker of an even number of workers; -1: none
};
// The vote over counts of several nodes: set where 2 * count > total_weight, in the leading any_words where count >= 1.
struct VoteCounts {
  std::vector<Tensor> planes;  // by node, each [c * w]; c may differ
  Tensor result;               // [w]
  int64_t any_words = 0;
  int64_t total_weight = 0;  // workers of all nodes, plus 1 if one of them was counted twice
};

// The signs as numbers that a sum combines: +weight and -weight, in the leading any_words 1 and 0.
struct ExpandSigns {
  Tensor words;  // [w]
  Tensor out;    // int8, int16 or int32, [64 w]
  int64_t any_words = 0;
  int weight = 1;  // 1 to 127
};
// Bit i = in[i] > 0.
struct ThresholdSigns {
  Tensor in;     // int8, int16 or int32, [64 w]
  Tensor words;  // [w]
};

// p = p * (1 - learning_rate * weight_decay) - learning_rate * scale * s, s the piece's signs as +1 and -1; in segments that
// the header calls zero, exactly p = p * (1 - learning_rate * weight_decay).
struct ApplySigns {
  enum Hyper { learning_rate, weight_decay, scale, count };  // as in MuonApply
  Tensor parameter;                                          // float32, segments.count elements
  Tensor words, header;
  SignSegments segments;
  Tensor hyper;           // float64 [count]
  Tensor published = {};  // optional: the updated parameter once more, float32 or rounded to bfloat16
};
// The voted signs as numbers: +1 or -1, 0 in segments that the header calls zero.
struct UnpackSigns {
  Tensor words, header;
  Tensor out;  // float32, segments.count elements
  SignSegments segments;
};

class SignKernels {
 public:
  virtual ~SignKernels() = default;
  virtual void pack(Stream& stream, const PackSigns& arguments) = 0;
  virtual void vote(Stream& stream, const VoteSigns& arguments) = 0;
  virtual void count(Stream& stream, const CountSigns& arguments) = 0;
  virtual void vote_counts(Stream& stream, const VoteCounts& arguments) = 0;
  virtual void expand(Stream& stream, const ExpandSigns& arguments) = 0;
  virtual void threshold(Stream& stream, const ThresholdSigns& arguments) = 0;
  virtual void apply(Stream& stream, const ApplySigns& arguments) = 0;
  virtual void unpack(Stream& stream, const UnpackSigns& arguments) = 0;
};

}  // namespace dmuon
