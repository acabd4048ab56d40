#include "dmuon/optim/clipping.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::vector<GradientPartials> gradient_partials(Backend& backend, Stream& stream, std::span<const GradientPiece> pieces, int64_t chunk) {
  std::vector<GradientPartials> partials;
  int64_t total = 0;
  for (const GradientPiece& piece : pieces) {
    if (piece.first_element % chunk != 0)
      throw ShapeError(text("gradient norm: the range of ", piece.name, " starts at element ", piece.first_element,
                            ", which is no multiple of the chunk of ", chunk));
    const int64_t chunks = divide_up(piece.gradient.elements(), chunk);
    partials.push_back({piece.name, piece.first_element / chunk, std::vector<double>(static_cast<size_t>(chunks), 0.0)});
    total += chunks;
  }
  if (total == 0) return partials;

  const Tensor sums = backend.allocate(Shape{total}, DType::float64, MemoryCategory::workspace, "gradient norm");
  int64_t first = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t chunks = static_cast<int64_t>(partials[i].sums.size());
    if (chunks > 0) backend.optimizer().square_sums(stream, {pieces[i].gradient, sums.flat(first, chunks), chunk});
    first += chunks;
  }
  std::vector<double> host(static_cast<size_t>(total), 0.0);
  backend.copy_to_host(stream, sums, host.data());
  auto next = host.begin();
  for (GradientPartials& each : partials) {
    const auto end = next + static_cast<std::ptrdiff_t>(each.sums.size());
    std::copy(next, end, each.sums.begin());
    next = end;
  }
  return partials;
}

double sum_of_partials(std::span<const GradientPartials> partials) {
  std::vector<const GradientPartials*> ordered;
  for (const GradientPartials& each : partials) ordered.push_back(&each);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return a->name != b->name ? a->name < b->name : a->first_chunk < b->first_chunk; });
  double total = 0.0;
  for (const GradientPartials* each : ordered)
    for (double sum : each->sums) total += sum;
  return total;
}

double clip_coefficient(double norm, double maximum) {
  if (maximum <= 0.0) return 1.0;
  const double coefficient = maximum / (norm + 1e-6);
  return coefficient < 1.0 || std::isnan(coefficient) ? coefficient : 1.0;
}

}  // namespace dmuon
