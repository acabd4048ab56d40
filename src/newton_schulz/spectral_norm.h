// Largest singular values by power iteration, for Normalization::spectral.
#pragma once

#include <vector>

#include "newton_schulz/products.h"

namespace dmuon {

// The largest singular value of scales[i] * x[i] for every matrix of a batch, from below: `rounds` rounds of power iteration
// on the Gram matrix, from a start vector that depends on its size only. `scales` bring each Frobenius norm near 1, or are 1
// for a zero matrix and NaN for one that is not finite; those give 0 and NaN. `squares` are buffers of the matrices' shape, at
// least, that are overwritten. Bits depend neither on threads nor on the batch nor on a power of two in the matrix. Blocks
// every few rounds.
std::vector<double> spectral_norms(Backend& backend, Stream& stream, const NewtonSchulzSchedule& schedule, const Matrices& x,
                                   const std::vector<double>& scales, const Matrices& squares, int rounds);

}  // namespace dmuon
