// The matrices of Wall-OSS-0.5 (417, dmuon's published inventory) and measured-like costs of batches.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

inline double gram_newton_schulz_flops(const Shape& shape) {
  const auto m = static_cast<double>(std::min(shape[0], shape[1])), n = static_cast<double>(std::max(shape[0], shape[1]));
  return 6 * m * m * n + 17 * m * m * m;
}

// Units: 36 blocks of the language tower, 36 of the action tower, 32 of the vision tower, the merger.
inline std::vector<PlanTensor> wall_oss() {
  std::vector<PlanTensor> tensors;
  int unit = 0;
  const auto tower = [&](const std::string& name, int layers, std::vector<Shape> shapes) {
    const char* names[] = {"qkv", "o", "gate_up", "down"};
    for (int layer = 0; layer < layers; ++layer, ++unit)
      for (size_t i = 0; i < shapes.size(); ++i)
        tensors.push_back(
            {name + "." + std::to_string(layer) + "." + names[i], shapes[i], unit, true, gram_newton_schulz_flops(shapes[i])});
  };
  tower("language", 36, {{2560, 2048}, {2048, 2048}, {22016, 2048}, {2048, 11008}});
  tower("action", 36, {{2560, 1024}, {1024, 1024}, {4096, 1024}, {1024, 2048}});
  tower("vision", 32, {{3840, 1280}, {1280, 1280}, {6912, 1280}, {1280, 3456}});
  tensors.push_back({"merger", Shape{5120, 5120}, unit, true, gram_newton_schulz_flops(Shape{5120, 5120})});
  return tensors;
}

// seconds(b) = latency + b * FLOPs / rate: 0.3 ms for some thirty launches and 200 TFLOP/s, as published for an A800:
// 1024 x 1024 in a batch of 16 then costs a third per matrix, 2048 x 22016 gains a twelfth.
inline CostModel measured_like(const std::vector<PlanTensor>& tensors, int largest_batch = 16) {
  CostModel model;
  for (const PlanTensor& tensor : tensors) {
    if (!tensor.whole || model.find(tensor.rule, tensor.shape) != nullptr) continue;
    ShapeCost cost{tensor.rule, tensor.shape, {}};
    for (int b = 1; b <= largest_batch; b *= 2) cost.batches.push_back({b, 0.3e-3 + b * tensor.cost / 200e12});
    model.add(std::move(cost));
  }
  return model;
}

}  // namespace dmuon
