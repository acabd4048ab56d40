#include "shard/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/checked.h"

namespace dmuon {

GradientNorm::GradientNorm(ShardJob& job, UnitStore& store) : job_(job), store_(store) {
  const auto& parameters = job.inventory().parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (job.rules.rule_of[i] >= 0) name_order_.push_back(static_cast<int>(i));
  std::sort(name_order_.begin(), name_order_.end(), [&](int a, int b) { return job.parameter(a).name < job.parameter(b).name; });
  std::vector<int64_t> chunk_of(parameters.size(), 0);
  for (int index : name_order_) {
    first_chunk_.push_back(chunks_);
    chunk_of[static_cast<size_t>(index)] = chunks_;
    chunks_ += divide_up(job.parameter(index).shape.elements(), job.plan.cut_elements);
  }
  for (const HeldPiece& held : store.held())
    held_offsets_.push_back(chunk_of[static_cast<size_t>(held.piece.tensor)] + held.piece.first / job.plan.cut_elements);
}

GradientReport GradientNorm::agree(std::span<const double> extras) {
  Backend& backend = job_.backend;
  Stream& stream = backend.compute_stream();
  const auto extra_count = static_cast<int64_t>(extras.size());
  if (!partials_.defined() || partials_.elements() != chunks_ + extra_count)
    partials_ = job_.allocate(chunks_ + extra_count, DType::float64, MemoryCategory::workspace, "partial sums of the gradient norm");
  backend.zero(stream, partials_);
  const std::vector<HeldPiece>& held = store_.held();
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].rule < 0) continue;
    const int64_t count = divide_up(held[i].piece.count, job_.plan.cut_elements);
    backend.optimizer().square_sums(stream, {held[i].gradient, partials_.flat(held_offsets_[i], count), job_.plan.cut_elements});
  }
  if (extra_count > 0) backend.copy_from_host(stream, extras.data(), partials_.flat(chunks_, extra_count));
  job_.add_over_ranks(partials_, "gradient norm");
  if (backend.shape_only()) return {0.0, true, "", {extras.begin(), extras.end()}};  // nothing was added, and a host need not hold the sums
  std::vector<double> sums(static_cast<size_t>(chunks_ + extra_count));
  backend.copy_to_host(stream, partials_, sums.data());

  GradientReport report;
  double square = 0.0;
  for (size_t i = 0; i < name_order_.size(); ++i) {
    // Each worker holds its share of the mean gradient; its own gradient is `replicas` times that, and what counts is the mean
    // over the workers of the squares: replicas^2 / replicas times the sum over the shares.
    const double weight = job_.votes_on(name_order_[i]) ? job_.grid.replicas : 1.0;
    const int64_t last = i + 1 < name_order_.size() ? first_chunk_[i + 1] : chunks_;
    for (int64_t chunk = first_chunk_[i]; chunk < last; ++chunk) {
      const double partial = sums[static_cast<size_t>(chunk)];
      if (!std::isfinite(partial) && report.finite) {
        report.finite = false;
        report.first_non_finite = job_.parameter(name_order_[i]).name;
      }
      square += weight * partial;
    }
  }
  report.norm = std::sqrt(square);
  report.sums.assign(sums.begin() + chunks_, sums.end());
  return report;
}

}  // namespace dmuon
