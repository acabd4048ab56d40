// One micro-batch on its way through the model: host tokens to device, forward, loss, backward.
#pragma once

#include "dmuon/data/dataset.h"
#include "dmuon/nn/model.h"
#include "train/step_clock.h"

namespace dmuon {

// Device tensors of a host batch; positions are 0 .. length - 1 in every sequence.
struct DeviceBatch {
  Tensor tokens, positions, targets;  // int32 [B, T], targets [B * T]
};
DeviceBatch to_device(Backend& backend, Stream& stream, const HostTokenBatch& batch);

// Forward and backward of one micro-batch. `gradient_scale` is 1 / (valid targets of the global batch). Returns the sum of
// the losses (not scaled), added in float64: a tensor [1], because a device may still be at work when this returns. `context`
// carries dropout keys; its tape is replaced by one that lives for the call. The clock is left in the backward phase.
Tensor train_micro_batch(Model& model, ExecutionContext context, const HostTokenBatch& batch, double gradient_scale, StepClock& clock);

// Sum of the losses of a batch without recording anything.
double evaluate_batch(Model& model, ExecutionContext context, const HostTokenBatch& batch);

}  // namespace dmuon
