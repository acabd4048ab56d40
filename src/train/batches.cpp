#include "train/batches.h"

namespace dmuon {
namespace {

Tensor sum_of(ExecutionContext& context, const Tensor& losses) {
  Tensor sum = context.backend.allocate(Shape{1}, DType::float64, MemoryCategory::workspace, "sum of losses");
  context.backend.optimizer().sum(context.stream, {losses, sum});
  return sum;
}

}  // namespace

DeviceBatch to_device(Backend& backend, Stream& stream, const HostTokenBatch& batch) {
  std::vector<int32_t> positions(batch.tokens.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % batch.length);
  const Shape shape{batch.sequences, batch.length};
  DeviceBatch device;
  device.tokens = backend.allocate(shape, DType::int32, MemoryCategory::data, "tokens");
  device.positions = backend.allocate(shape, DType::int32, MemoryCategory::data, "positions");
  device.targets = backend.allocate(Shape{batch.sequences * batch.length}, DType::int32, MemoryCategory::data, "targets");
  backend.copy_from_host(stream, batch.tokens.data(), device.tokens);
  backend.copy_from_host(stream, positions.data(), device.positions);
  backend.copy_from_host(stream, batch.targets.data(), device.targets);
  return device;
}

Tensor train_micro_batch(Model& model, ExecutionContext context, const HostTokenBatch& batch, double gradient_scale, StepClock& clock) {
  clock.enter(StepPhase::forward);
  Tape tape;
  context.tape = &tape;
  context.training = true;
  context.sequences = batch.sequences;
  const DeviceBatch device = to_device(context.backend, context.stream, batch);
  Tensor loss;
  {
    Variable logits = model.forward(context, device.tokens, device.positions);
    const Variable losses =
        softmax_cross_entropy(context, std::move(logits), device.targets, model.facts().vocabulary_size, gradient_scale);
    loss = sum_of(context, losses.value());
  }
  clock.enter(StepPhase::backward);
  tape.backward(context);
  return loss;
}

double evaluate_batch(Model& model, ExecutionContext context, const HostTokenBatch& batch) {
  context.tape = nullptr;
  context.training = false;
  context.sequences = batch.sequences;
  const DeviceBatch device = to_device(context.backend, context.stream, batch);
  Variable logits = model.forward(context, device.tokens, device.positions);
  const Variable losses = softmax_cross_entropy(context, std::move(logits), device.targets, model.facts().vocabulary_size, 0.0);
  double sum = 0.0;
  context.backend.copy_to_host(context.stream, sum_of(context, losses.value()), &sum);
  return sum;
}

}  // namespace dmuon
