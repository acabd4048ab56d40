#include "dmuon/optim/muon.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "optim/muon_tuning.h"
#include "optim/rule_support.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;  // of the sums of squares

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonOptions& options) : options_(options) {
    check_range("muon", "momentum", options.momentum, 0.0, 1.0, true);
    check_range("muon", "momentum_start", options.momentum_start, 0.0, 1.0, true);
    check_range("muon", "momentum_warmup_steps", static_cast<double>(options.momentum_warmup_steps), 0.0, 1e12);
    check_range("muon", "scale_factor", options.scale_factor, 0.0, 1e6);
    check_range("muon", "weight_decay", options.weight_decay, 0.0, 1e6);
    check(options.newton_schulz);
  }

  std::string name() const override { return "muon"; }
  Cutting cutting() const override { return Cutting::whole; }
  std::vector<StateSpecification> state() const override { return {{"momentum"}}; }
  int newton_schulz_calls() const override { return 1; }
  UpdateCounters counters() const override { return counters_; }

  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("momentum_form", name_of(options_.momentum_form));
    result.set("nesterov", options_.nesterov);
    result.set("momentum", options_.momentum);
    result.set("momentum_start", options_.momentum_warmup_steps > 0 ? options_.momentum_start : options_.momentum);
    result.set("momentum_warmup_steps", options_.momentum_warmup_steps);
    const Json newton_schulz = options_.newton_schulz.description();
    for (const auto& [key, value] : newton_schulz.as_object()) result.set(key, value);
    result.set("newton_schulz_dtype", "float32");
    if (options_.tune_numerics) result.set("tune_numerics", true);
    result.set("scale", name_of(options_.scale));
    result.set("scale_factor", options_.scale_factor);
    result.set("weight_decay", options_.weight_decay);
    result.set("weight_decay_mode", "decoupled_base_learning_rate");
    result.set("logical_view", "rows_of_dimension_0");
    return result;
  }

  double flops(const Shape& shape) const override {
    const Shape matrix = muon_matrix_shape("a tensor", shape);
    return newton_schulz_flops(options_.newton_schulz, matrix[0], matrix[1]) + 10.0 * static_cast<double>(shape.elements());
  }

  Json tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache* cache) override {
    take(tune_muon(backend, options_, shapes, cache));
    return tuning_.to_json();
  }

  void adopt(const Json& choices) override {
    MuonTuning tuning = MuonTuning::from_json(choices);
    if (!tuning.forms.empty() && !options_.tune_numerics)
      throw ConfigError("muon: measured Newton-Schulz forms were given, but tune_numerics is off: they would change the update");
    take(std::move(tuning));
  }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    values_ = values;
    if (threads_ == 0) threads_ = backend.information().threads;
    std::array<double, MuonMomentum::count> hyper{};
    hyper[MuonMomentum::momentum] = muon_momentum(options_, values.step);
    hyper[MuonMomentum::gradient_scale] = values.gradient_scale;
    momentum_hyper_.write(backend, stream, hyper);
    for (ApplyHyper& each : apply_hypers_) write_apply(backend, stream, each);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    // Groups of equal shape in the order of their first item, each in batches that fit the workspace.
    std::vector<std::pair<Shape, std::vector<const UpdateItem*>>> groups;
    for (const UpdateItem& item : items) {
      const Shape shape = muon_matrix_shape(item.name, item.parameter.shape());
      check_item(*this, item);
      auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) {
        return each.first == shape && each.second.front()->parameter.dtype() == item.parameter.dtype();
      });
      if (group == groups.end()) group = groups.insert(groups.end(), {shape, {}});
      group->second.push_back(&item);
    }
    for (const auto& [shape, members] : groups) {
      const auto count = static_cast<int64_t>(members.size());
      const NewtonSchulzPlacement* tuned = tuning_.placement(shape);
      const NewtonSchulzPlacement placement =
          tuned ? *tuned
                : newton_schulz_placement(options_.newton_schulz, shape[0], shape[1], members.front()->parameter.dtype(), count, threads_,
                                          options_.workspace_bytes);
      const auto batch = static_cast<size_t>(placement.batch);
      for (size_t first = 0; first < members.size(); first += batch)
        update(backend, stream, shape, {members.data() + first, std::min(batch, members.size() - first)}, placement.queues);
    }
  }

 private:
  struct ApplyHyper {
    Shape shape;
    HyperTensor hyper;
  };

  void take(MuonTuning tuning) {
    tuning_ = std::move(tuning);
    options_.newton_schulz.measured_forms = tuning_.forms;
  }

  void update(Backend& backend, Stream& stream, const Shape& shape, std::span<const UpdateItem* const> items, int queues) {
    const int64_t count = static_cast<int64_t>(items.size()), elements = shape.elements(), chunks = divide_up(elements, chunk);
    const Tensor update_block =
        backend.allocate(Shape{count, shape[0], shape[1]}, items.front()->parameter.dtype(), MemoryCategory::workspace, "Muon updates");
    const Tensor sums = backend.allocate(Shape{count, chunks}, DType::float64, MemoryCategory::workspace, "Muon norms");
    std::vector<Tensor> updates;
    for (int64_t i = 0; i < count; ++i) {
      const UpdateItem& item = *items[static_cast<size_t>(i)];
      updates.push_back(update_block.flat(i * elements, elements).reshape(shape));
      MuonMomentum momentum;
      momentum.sum_form = options_.momentum_form == MomentumForm::sum;
      momentum.nesterov = options_.nesterov;
      momentum.gradient = item.gradient.reshape(shape);
      momentum.momentum_buffer = item.state[0].reshape(shape);
      momentum.update = updates.back();
      momentum.square_sums = sums.flat(i * chunks, chunks);
      momentum.chunk = chunk;
      momentum.hyper = momentum_hyper_.tensor();
      backend.optimizer().muon_momentum(stream, momentum);
    }
    const NewtonSchulzResult orthogonal = NewtonSchulzEngine(backend, queues).orthogonalize(stream, options_.newton_schulz, updates, sums);
    counters_.newton_schulz_calls += count;
    counters_.newton_schulz_guard_events += orthogonal.guard_events;
    const Tensor& hyper = apply_hyper(backend, stream, shape);
    for (int64_t i = 0; i < count; ++i) {
      const UpdateItem& item = *items[static_cast<size_t>(i)];
      MuonApply apply;
      apply.parameter = item.parameter.reshape(shape);
      apply.update = orthogonal.matrices[static_cast<size_t>(i)];
      apply.hyper = hyper;
      if (item.published.defined()) apply.published = item.published.reshape(shape);
      backend.optimizer().muon_apply(stream, apply);
    }
  }

  // The scale depends on the shape: one hyper tensor for each, made when a shape is first seen.
  const Tensor& apply_hyper(Backend& backend, Stream& stream, const Shape& shape) {
    for (const ApplyHyper& each : apply_hypers_)
      if (each.shape == shape) return each.hyper.tensor();
    apply_hypers_.push_back({shape, {}});
    write_apply(backend, stream, apply_hypers_.back());
    return apply_hypers_.back().hyper.tensor();
  }

  void write_apply(Backend& backend, Stream& stream, ApplyHyper& apply) const {
    std::array<double, MuonApply::count> hyper{};
    hyper[MuonApply::learning_rate] = values_.learning_rate;
    hyper[MuonApply::weight_decay] = options_.weight_decay;
    hyper[MuonApply::scale] = options_.scale_factor * muon_scale(options_.scale, apply.shape[0], apply.shape[1]);
    apply.hyper.write(backend, stream, hyper);
  }

  MuonOptions options_;
  MuonTuning tuning_;
  StepValues values_;
  int threads_ = 0;  // of the backend; known from the first prepare() on
  HyperTensor momentum_hyper_;
  std::vector<ApplyHyper> apply_hypers_;
  UpdateCounters counters_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const MuonOptions& options) { return std::make_unique<Muon>(options); }

}  // namespace dmuon
