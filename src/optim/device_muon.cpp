#include "optim/device_muon.h"

#include <utility>

#include "dmuon/core/checked.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;  // of the sums of squares

// `first`: which of the guard's verdicts are written.
uint64_t key_of(const OrthogonalMomentumOptions& options, const Shape& shape, int64_t first, std::span<const MuonApply> applies) {
  uint64_t key = hash_name(text("muon ", first, " ", shape.to_string(), " ", applies.size(), " ", name_of(options.momentum_form), " ",
                                options.nesterov, " ", options.newton_schulz.description().dump()));
  for (const MuonApply& apply : applies)
    key = mix64(key ^ (apply.published.defined() ? 1 + static_cast<uint64_t>(apply.published.dtype()) : 0));
  return key;
}

}  // namespace

DeviceMuon::DeviceMuon(Backend& backend, Stream& stream, const OrthogonalMomentumOptions& options, Hyper hyper, int64_t items,
                       int64_t& scratch_bytes)
    : backend_(backend),
      stream_(stream),
      options_(options),
      hyper_(std::move(hyper)),
      scratch_(backend, scratch_bytes),
      failed_(scratch_.take(Shape{items}, DType::int32, "Newton-Schulz guard")) {}

void DeviceMuon::queue_momentum(const UpdateItem& item, const Shape& shape, const Tensor& update, const Tensor& sums) const {
  MuonMomentum momentum;
  momentum.sum_form = options_.momentum_form == MomentumForm::sum;
  momentum.nesterov = options_.nesterov;
  momentum.gradient = item.gradient.reshape(shape);
  momentum.momentum_buffer = item.state[0].reshape(shape);
  momentum.update = update;
  momentum.square_sums = sums;
  momentum.chunk = chunk;
  momentum.hyper = hyper_.tensor;
  backend_.optimizer().muon_momentum(stream_, momentum);
}

void DeviceMuon::update(const Shape& shape, std::span<UpdateItem* const> items, const ApplyOf& apply_of) {
  const int64_t count = static_cast<int64_t>(items.size()), elements = shape.elements(), chunks = divide_up(elements, chunk);
  const auto workspace = [&](const Shape& of, DType dtype, const char* label) { return scratch_.take(of, dtype, label); };
  const int64_t before = scratch_.position();
  const Tensor block = workspace(Shape{count, shape[0], shape[1]}, DType::float32, "Muon updates");
  const Tensor sums = workspace(Shape{count, chunks}, DType::float64, "Muon norms");
  const Tensor guarded = workspace(Shape{count, MuonApply::count}, DType::float64, "Muon hyper-parameters behind the guard");
  DeviceNewtonSchulz newton_schulz(backend_, options_.newton_schulz, shape[0], shape[1], count, &scratch_);
  Batch batch{shape, {items.begin(), items.end()}, {}, items_, newton_schulz.gram()};

  std::vector<Tensor> updates, tensors = newton_schulz.tensors();
  tensors.insert(tensors.end(), {block, sums, guarded, failed_, hyper_.tensor});
  for (int64_t i = 0; i < count; ++i) {
    UpdateItem& item = *items[static_cast<size_t>(i)];
    updates.push_back(block.flat(i * elements, elements).reshape(shape));
    MuonApply apply = apply_of(item, shape);
    apply.update = newton_schulz.results()[static_cast<size_t>(i)];
    for (const Tensor& tensor : {item.gradient, item.state[0], apply.parameter, apply.hyper, apply.published})
      if (tensor.defined()) tensors.push_back(tensor);
    batch.applies.push_back(std::move(apply));
  }

  const auto queue = [&] {
    for (int64_t i = 0; i < count; ++i)
      queue_momentum(*items[static_cast<size_t>(i)], shape, updates[static_cast<size_t>(i)], sums.flat(i * chunks, chunks));
    newton_schulz.queue(stream_, updates, sums);
    for (int64_t i = 0; i < count; ++i) {
      MuonApply apply = batch.applies[static_cast<size_t>(i)];
      GuardUpdate guard;
      guard.square_sums = newton_schulz.result_square_sums(i), guard.update = apply.update;
      guard.hyper = apply.hyper, guard.guarded_hyper = guarded.flat(i * MuonApply::count, MuonApply::count);
      guard.failed = failed_.flat(batch.first + i, 1), guard.limit = newton_schulz.guard_limit(), guard.withhold = newton_schulz.gram();
      device_updates(backend_)->guard(stream_, guard);
      apply.hyper = guard.guarded_hyper;
      backend_.optimizer().muon_apply(stream_, apply);
    }
  };
  device_updates(backend_)->replay(stream_, key_of(options_, shape, batch.first, batch.applies), tensors, queue);
  for (MuonApply& apply : batch.applies) apply.update = {};
  batches_.push_back(std::move(batch));
  items_ += count;
  scratch_.give_back(before);  // the next batch follows on the same stream
}

int64_t DeviceMuon::finish() {
  int64_t events = 0;
  std::vector<int32_t> failed(static_cast<size_t>(failed_.elements()));
  backend_.copy_to_host(stream_, failed_, failed.data());
  for (const Batch& batch : batches_) {
    for (size_t i = 0; i < batch.items.size(); ++i) {
      if (failed[static_cast<size_t>(batch.first) + i] == 0) continue;
      ++events;
      if (batch.gram) repeat(batch, i);
    }
  }
  batches_.clear();
  return events;
}

// The momentum has moved already: the update is computed again from it and from the gradient, which is still there.
void DeviceMuon::repeat(const Batch& batch, size_t i) {
  const UpdateItem& item = *batch.items[i];
  const double factor = options_.momentum_form == MomentumForm::sum ? 1.0 : 1.0 - hyper_.momentum;
  const Tensor update = backend_.allocate(batch.shape, DType::float32, MemoryCategory::workspace, "Muon update that failed the guard");
  const Tensor sums =
      backend_.allocate(Shape{1, divide_up(batch.shape.elements(), chunk)}, DType::float64, MemoryCategory::workspace, "Muon norms");
  backend_.activation().scaled_add(stream_, {item.state[0].reshape(batch.shape), update, options_.nesterov ? hyper_.momentum : 1.0, false});
  if (options_.nesterov)
    backend_.activation().scaled_add(stream_, {item.gradient.reshape(batch.shape), update, factor * hyper_.gradient_scale, true});
  backend_.optimizer().square_sums(stream_, {update, sums, chunk});
  NewtonSchulzSpecification direct = options_.newton_schulz;
  direct.form = IterationForm::direct;
  DeviceNewtonSchulz newton_schulz(backend_, direct, batch.shape[0], batch.shape[1], 1);
  newton_schulz.queue(stream_, {&update, 1}, sums);
  MuonApply apply = batch.applies[i];
  apply.update = newton_schulz.results().front();
  backend_.optimizer().muon_apply(stream_, apply);
}

}  // namespace dmuon
