// The hyper-parameters of an update that is scaled by its tensor's shape.
#pragma once

#include <vector>

#include "optim/rule_support.h"

namespace dmuon {

// Hyper tensors of MuonApply and ApplySigns: learning rate, decay and a scale, one tensor for each scale that has been seen.
class ScaledHyper {
 public:
  void prepare(Backend& backend, Stream& stream, double learning_rate, double weight_decay) {
    learning_rate_ = learning_rate, weight_decay_ = weight_decay;
    for (Entry& each : entries_) write(backend, stream, each);
  }
  const Tensor& of(Backend& backend, Stream& stream, double scale) {
    for (const Entry& each : entries_)
      if (each.scale == scale) return each.hyper.tensor();
    entries_.push_back({scale, {}});
    write(backend, stream, entries_.back());
    return entries_.back().hyper.tensor();
  }

 private:
  struct Entry {
    double scale;
    HyperTensor hyper;
  };
  void write(Backend& backend, Stream& stream, Entry& entry) const {
    std::array<double, MuonApply::count> hyper{};
    hyper[MuonApply::learning_rate] = learning_rate_;
    hyper[MuonApply::weight_decay] = weight_decay_;
    hyper[MuonApply::scale] = entry.scale;
    entry.hyper.write(backend, stream, hyper);
  }

  double learning_rate_ = 0.0, weight_decay_ = 0.0;
  std::vector<Entry> entries_;
};

}  // namespace dmuon
