#include "direct_update.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "support.h"

namespace dmuon::bench {
namespace {

constexpr int64_t chunk = 16384;  // of sums of squares

}  // namespace

DirectUpdate::DirectUpdate(Backend& backend, const MuonOptions& options, std::span<const UpdateItem> items, const DirectForm& form)
    : backend_(backend), options_(options), batch_(static_cast<size_t>(form.batch)) {
  hyper_ = backend.allocate({5}, DType::float64, MemoryCategory::workspace, "hyper");
  from_doubles(backend, std::vector<double>{0.95, 1.0, 1e-3, 0.0, 1.0}, hyper_);
  for (const UpdateItem& item : items) {
    const Shape shape = item.parameter.shape();
    ShapeGroup& group = groups_[shape.to_string()];
    group.items.push_back(item);
    if (!group.direct) group.direct = std::make_unique<DeviceDirect>(backend, shape, form);
    if (group.updates.size() == batch_) continue;
    group.updates.push_back(backend.allocate(shape, DType::float32, MemoryCategory::workspace, "direct form"));
    group.sums.push_back(backend.allocate({divide_up(shape.elements(), chunk)}, DType::float64, MemoryCategory::workspace, "direct form"));
  }
}

void DirectUpdate::queue(Stream& stream) {
  for (auto& [shape, group] : groups_)
    for (size_t first = 0; first < group.items.size(); first += batch_)
      queue(stream, group, first, std::min(batch_, group.items.size() - first));
}

void DirectUpdate::queue(Stream& stream, ShapeGroup& group, size_t first, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const UpdateItem& item = group.items[first + i];
    MuonMomentum momentum;
    momentum.gradient = item.gradient, momentum.momentum_buffer = item.state[0], momentum.update = group.updates[i];
    momentum.square_sums = group.sums[i], momentum.hyper = hyper_.flat(0, 2);
    backend_.optimizer().muon_momentum(stream, momentum);
  }
  const std::span<const Tensor> results = group.direct->queue(stream, coefficient_set(options_.newton_schulz.coefficients),
                                                              std::span(group.updates).first(count), std::span(group.sums).first(count));
  for (size_t i = 0; i < count; ++i)
    backend_.optimizer().muon_apply(stream, {group.items[first + i].parameter, results[i], hyper_.flat(2, 3)});
}

std::vector<Tensor> DirectUpdate::tensors() const {
  std::vector<Tensor> all{hyper_};
  for (const auto& [shape, group] : groups_) {
    for (const UpdateItem& item : group.items) all.insert(all.end(), {item.parameter, item.gradient, item.state[0]});
    for (const std::vector<Tensor>& each : {group.updates, group.sums, group.direct->tensors()})
      all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

}  // namespace dmuon::bench
