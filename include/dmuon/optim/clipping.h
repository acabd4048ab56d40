// The global gradient norm and its clip coefficient, so that every world size, layout and cut gives the same bits: sums of
// squares in float64 over chunks of `chunk` elements counted from each tensor's start, added in (name, chunk) order.
// Rank-blind: partial sums come from here, travel between ranks elsewhere, and are added here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"

namespace dmuon {

struct GradientPiece {
  std::string name;           // the parameter's
  Tensor gradient;            // a whole tensor or a range of it
  int64_t first_element = 0;  // of the range in its tensor, a multiple of the chunk
};
struct GradientPartials {
  std::string name;
  int64_t first_chunk = 0;
  std::vector<double> sums;  // of chunks first_chunk, first_chunk + 1, ...
};

// Blocks on the stream once. ShapeError naming the parameter when a range does not start on a chunk.
std::vector<GradientPartials> gradient_partials(Backend& backend, Stream& stream, std::span<const GradientPiece> pieces,
                                                int64_t chunk = 16384);
// N^2 in (name, chunk) order, whatever the order given.
double sum_of_partials(std::span<const GradientPartials> partials);
// min(1, maximum / (norm + 1e-6)) as in torch; 1 when maximum <= 0 (no clipping). The caller applies its policy to a norm
// that is not finite first; here such a norm gives 0 or NaN.
double clip_coefficient(double norm, double maximum);

}  // namespace dmuon
