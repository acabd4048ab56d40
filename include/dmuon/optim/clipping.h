// One clip coefficient for the whole job. The norm it takes is agreed by layer shard: sums of squares in float64 over chunks
// counted from each tensor's start, added in (name, chunk) order, so that every world size, layout and cut gives its bits.
#pragma once

namespace dmuon {

// min(1, maximum / (norm + 1e-6)) as in torch; 1 when maximum <= 0 (no clipping). The caller applies its policy to a norm
// that is not finite first; here such a norm gives 0 or NaN.
double clip_coefficient(double norm, double maximum);

}  // namespace dmuon
