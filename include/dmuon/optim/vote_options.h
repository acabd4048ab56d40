// What the rules have in common whose workers agree by a vote on signs (Sign-Muon, arXiv:2605.16311; signSGD with majority
// vote, arXiv:1810.05291): every worker turns its own gradient into a message, the sign of the message travels as one bit an
// element, and all take the step of the majority s = +1 or -1:
//
//   p = p * (1 - learning_rate * weight_decay) - learning_rate * factor * s
//
// A row (a chunk of a long row) whose message is zero on every worker gets s = 0: a step along s leaves it to the decay (the
// moments of SignAdam still move it). Uncoupled, no bit changes when the gradient is scaled by a power of two.
#pragma once

#include <cstdint>
#include <string_view>

namespace dmuon {

// Factor on the learning rate of a tensor seen as [fan_out, fan_in]: fan_in is the last dimension of a matrix, all but the
// first of a convolution, all elements of a vector, which counts as one row.
enum class RateShape : uint8_t {
  none,       // 1: every element of every tensor moves by the learning rate, as in the paper
  unit_gain,  // 1 / sqrt(fan_in): a random input of unit size changes every output by about the learning rate
  mup         // 1 / fan_in: muP for rules with steps of fixed size (Yang et al., Tensor Programs V, arXiv:2203.03466, table 8,
              // hidden weights under Adam), which keeps the best rate while the width grows
};
std::string_view name_of(RateShape shape);  // "none", "unit_gain", "mup"
RateShape rate_shape_from_name(std::string_view name);
double rate_factor(RateShape shape, int64_t fan_in);

enum class DecayMode : uint8_t {
  decoupled,  // the parameter shrinks by 1 - learning_rate * weight_decay; the factor above does not enter
  coupled     // weight_decay * p is added to the worker's gradient, so it can turn the step but shrinks nothing (the paper)
};
std::string_view name_of(DecayMode mode);  // "decoupled", "coupled"
DecayMode decay_mode_from_name(std::string_view name);

struct VoteOptions {
  RateShape rate_shape = RateShape::none;
  DecayMode decay = DecayMode::decoupled;
  double weight_decay = 0.0;
};

}  // namespace dmuon
