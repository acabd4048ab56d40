#include "optim/orthogonal_momentum.h"

#include <algorithm>
#include <utility>

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;  // of the sums of squares

}  // namespace

OrthogonalMomentum::OrthogonalMomentum(std::string rule, const OrthogonalMomentumOptions& options)
    : rule_(std::move(rule)), options_(options) {
  check_range(rule_.c_str(), "momentum", options.momentum, 0.0, 1.0, true);
  check_range(rule_.c_str(), "momentum_start", options.momentum_start, 0.0, 1.0, true);
  check_range(rule_.c_str(), "momentum_warmup_steps", static_cast<double>(options.momentum_warmup_steps), 0.0, 1e12);
  check(options.newton_schulz);
}

void OrthogonalMomentum::describe(Json& description) const {
  description.set("momentum_form", name_of(options_.momentum_form));
  description.set("nesterov", options_.nesterov);
  description.set("momentum", options_.momentum);
  description.set("momentum_start", options_.momentum_warmup_steps > 0 ? options_.momentum_start : options_.momentum);
  description.set("momentum_warmup_steps", options_.momentum_warmup_steps);
  const Json newton_schulz = options_.newton_schulz.description();
  for (const auto& [key, value] : newton_schulz.as_object()) description.set(key, value);
  if (options_.per_head) description.set("per_head", true);
  if (options_.tune_numerics) description.set("tune_numerics", true);
  std::vector<SymmetricChoice> other_sums;
  for (const SymmetricChoice& choice : tuning_.symmetric)
    if (choice.changes_bits) other_sums.push_back(choice);
  if (!other_sums.empty()) description.set("symmetric_products", symmetric_json(other_sums));
}

double OrthogonalMomentum::flops(const Shape& shape) const {
  const ShapeCount matrices = muon_matrices(rule_, "a tensor", shape, options_.per_head);
  return static_cast<double>(matrices.count) * newton_schulz_flops(options_.newton_schulz, matrices.shape[0], matrices.shape[1]) +
         10.0 * static_cast<double>(shape.elements());
}

Json OrthogonalMomentum::tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache* cache) {
  take(tune_muon(backend, rule_, options_, shapes, cache, adopted_ ? &tuning_ : nullptr));
  return tuning_.to_json();
}

void OrthogonalMomentum::adopt(const Json& choices) {
  MuonTuning tuning = MuonTuning::from_json(choices);
  const bool other_sums =
      std::any_of(tuning.symmetric.begin(), tuning.symmetric.end(), [](const SymmetricChoice& choice) { return choice.changes_bits; });
  if ((!tuning.forms.empty() || other_sums) && !options_.tune_numerics)
    throw ConfigError(text(rule_, ": measured Newton-Schulz forms were given, but tune_numerics is off: they would change the update"));
  take(std::move(tuning));
  adopted_ = true;
}

void OrthogonalMomentum::take(MuonTuning tuning) {
  tuning_ = std::move(tuning);
  forms_in_use_ = false;
  options_.newton_schulz.measured_forms = tuning_.forms;
}

void OrthogonalMomentum::prepare(Backend& backend, Stream& stream, const StepValues& values) {
  threads_ = backend.information().threads;
  if (on_device() && !device_updates(backend))
    throw DeviceError(
        text(rule_, ": newton_schulz_dtype is float16, which backend ", backend.name(), " cannot multiply; choose float32 or auto"));
  if (on_device() && !forms_in_use_) use_symmetric_choices(backend, tuning_.symmetric);
  forms_in_use_ = true;
  momentum_now_ = muon_momentum(options_, values.step), gradient_scale_ = values.gradient_scale;
  std::array<double, MuonMomentum::count> hyper{};
  hyper[MuonMomentum::momentum] = momentum_now_;
  hyper[MuonMomentum::gradient_scale] = gradient_scale_;
  hyper_.write(backend, stream, hyper);
}

NewtonSchulzPlacement OrthogonalMomentum::placement_of(const Shape& shape, DType dtype, int64_t count) const {
  if (on_device()) {
    const int64_t batch =
        newton_schulz_device_batch(options_.newton_schulz, shape[0], shape[1], count, device_workspace_factor * options_.workspace_bytes);
    const NewtonSchulzPlacement* tuned = tuning_.placement(shape);
    const int64_t of_call = tuned ? std::min(batch, tuned->batch) : batch;
    return {of_call, static_cast<int>(of_call)};
  }
  if (const NewtonSchulzPlacement* tuned = tuning_.placement(shape)) return *tuned;
  return newton_schulz_placement(options_.newton_schulz, shape[0], shape[1], dtype, count, threads_, options_.workspace_bytes);
}

MatrixItems OrthogonalMomentum::matrices_of(std::span<const UpdateItem> items) const {
  MatrixItems matrices;
  for (size_t i = 0; i < items.size(); ++i) {
    const UpdateItem& item = items[i];
    const ShapeCount shapes = muon_matrices(rule_, item.name, item.parameter.shape(), options_.per_head);
    const int64_t elements = shapes.shape.elements();
    for (int64_t k = 0; k < shapes.count; ++k) {
      const auto part = [&](const Tensor& tensor) {
        return tensor.defined() ? tensor.flat(k * elements, elements).reshape(shapes.shape) : Tensor();
      };
      UpdateItem matrix{item.name, part(item.parameter), part(item.gradient), {}, part(item.published)};
      for (const Tensor& state : item.state) matrix.state.push_back(part(state));
      matrices.items.push_back(std::move(matrix));
      matrices.origins.push_back({i, k * elements});
    }
  }
  return matrices;
}

MatrixItems OrthogonalMomentum::checked_matrices(const UpdateRule& rule, std::span<const UpdateItem> items) const {
  for (const UpdateItem& item : items) {
    muon_matrices(rule_, item.name, item.parameter.shape(), options_.per_head);
    check_item(rule, item);
  }
  return matrices_of(items);
}

void OrthogonalMomentum::for_batches(std::span<UpdateItem> items, const Batch& update) const {
  // Groups of equal shape in the order of their first item, each in batches that fit the workspace.
  std::vector<std::pair<Shape, std::vector<UpdateItem*>>> groups;
  for (UpdateItem& item : items) {
    const Shape& shape = item.parameter.shape();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) {
      return each.first == shape && each.second.front()->parameter.dtype() == item.parameter.dtype();
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {shape, {}});
    group->second.push_back(&item);
  }
  for (const auto& [shape, members] : groups) {
    const auto count = static_cast<int64_t>(members.size());
    const NewtonSchulzPlacement placement = placement_of(shape, members.front()->parameter.dtype(), count);
    const auto batch = static_cast<size_t>(placement.batch);
    for (size_t first = 0; first < members.size(); first += batch)
      update(shape, {members.data() + first, std::min(batch, members.size() - first)}, placement.queues);
  }
}

void OrthogonalMomentum::run(const UpdateRule& rule, Backend& backend, Stream& stream, std::span<UpdateItem> items, bool in_place,
                             const Consumer& consume) {
  MatrixItems matrices = checked_matrices(rule, items);
  for_batches(matrices.items, [&](const Shape& shape, std::span<UpdateItem* const> batch, int queues) {
    run_batch(backend, stream, shape, batch, queues, in_place, consume);
  });
}

void OrthogonalMomentum::update(const UpdateRule& rule, Backend& backend, Stream& stream, std::span<UpdateItem> items,
                                const ApplyOf& apply_of) {
  if (!on_device())
    return run(rule, backend, stream, items, false, [&](UpdateItem& item, const Shape& shape, const Tensor& orthogonal) {
      MuonApply apply = apply_of(item, shape);
      apply.update = orthogonal;
      backend.optimizer().muon_apply(stream, apply);
    });
  if (items.empty()) return;
  MatrixItems matrices = checked_matrices(rule, items);
  const auto count = static_cast<int64_t>(matrices.items.size());
  DeviceMuon device(backend, stream, options_, {hyper_.tensor(), momentum_now_, gradient_scale_}, count, scratch_bytes_);
  for_batches(matrices.items, [&](const Shape& shape, std::span<UpdateItem* const> batch, int) { device.update(shape, batch, apply_of); });
  counters_.newton_schulz_calls += count;
  counters_.newton_schulz_guard_events += device.finish();
}

void OrthogonalMomentum::run_batch(Backend& backend, Stream& stream, const Shape& shape, std::span<UpdateItem* const> items, int queues,
                                   bool in_place, const Consumer& consume) {
  const int64_t count = static_cast<int64_t>(items.size()), elements = shape.elements(), chunks = divide_up(elements, chunk);
  Tensor update_block;
  if (!in_place)
    update_block =
        backend.allocate(Shape{count, shape[0], shape[1]}, items.front()->parameter.dtype(), MemoryCategory::workspace, "Muon updates");
  const Tensor sums = backend.allocate(Shape{count, chunks}, DType::float64, MemoryCategory::workspace, "Muon norms");
  std::vector<Tensor> updates;
  for (int64_t i = 0; i < count; ++i) {
    const UpdateItem& item = *items[static_cast<size_t>(i)];
    updates.push_back(in_place ? item.gradient.reshape(shape) : update_block.flat(i * elements, elements).reshape(shape));
    MuonMomentum momentum;
    momentum.sum_form = options_.momentum_form == MomentumForm::sum;
    momentum.nesterov = options_.nesterov;
    momentum.gradient = item.gradient.reshape(shape);
    momentum.momentum_buffer = item.state[0].reshape(shape);
    momentum.update = updates.back();
    momentum.square_sums = sums.flat(i * chunks, chunks);
    momentum.chunk = chunk;
    momentum.hyper = hyper_.tensor();
    backend.optimizer().muon_momentum(stream, momentum);
  }
  const std::vector<Tensor> orthogonal =
      this->count(NewtonSchulzEngine(backend, queues).orthogonalize(stream, options_.newton_schulz, updates, sums));
  for (size_t i = 0; i < items.size(); ++i) consume(*items[i], shape, orthogonal[i]);
}

std::vector<Tensor> OrthogonalMomentum::orthogonalize(Backend& backend, Stream& stream, std::span<const Tensor> matrices, int queues) {
  return count(NewtonSchulzEngine(backend, queues).orthogonalize(stream, options_.newton_schulz, matrices));
}

std::vector<Tensor> OrthogonalMomentum::count(NewtonSchulzResult result) {
  counters_.newton_schulz_calls += static_cast<int64_t>(result.matrices.size());
  counters_.newton_schulz_guard_events += result.guard_events;
  return std::move(result.matrices);
}

}  // namespace dmuon
