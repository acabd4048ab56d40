#include "dmuon/optim/muon.h"

#include "optim/orthogonal_momentum.h"
#include "optim/scaled_hyper.h"

namespace dmuon {
namespace {

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonOptions& options) : options_(options), momentum_("muon", options) {
    check_range("muon", "scale_factor", options.scale_factor, 0.0, 1e6);
    check_range("muon", "weight_decay", options.weight_decay, 0.0, 1e6);
  }

  std::string name() const override { return "muon"; }
  Cutting cutting() const override { return Cutting::whole; }
  bool per_head() const override { return options_.per_head; }
  std::vector<StateSpecification> state() const override { return {{"momentum"}}; }
  int newton_schulz_calls() const override { return 1; }
  UpdateCounters counters() const override { return momentum_.counters(); }

  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    momentum_.describe(result);
    result.set("scale", name_of(options_.scale));
    result.set("scale_factor", options_.scale_factor);
    result.set("weight_decay", options_.weight_decay);
    result.set("weight_decay_mode", "decoupled_base_learning_rate");
    result.set("logical_view", "rows_of_dimension_0");
    return result;
  }
  double flops(const Shape& shape) const override { return momentum_.flops(shape); }

  Json tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache* cache) override {
    return momentum_.tune(backend, shapes, cache);
  }
  void adopt(const Json& choices) override { momentum_.adopt(choices); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    momentum_.prepare(backend, stream, values);
    apply_.prepare(backend, stream, values.learning_rate, options_.weight_decay);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    momentum_.update(*this, backend, stream, items, [&](UpdateItem& item, const Shape& shape) {
      MuonApply apply;
      apply.parameter = item.parameter.reshape(shape);
      apply.hyper = apply_.of(backend, stream, options_.scale_factor * muon_scale(options_.scale, shape[0], shape[1]));
      if (item.published.defined()) apply.published = item.published.reshape(shape);
      return apply;
    });
  }

 private:
  MuonOptions options_;
  OrthogonalMomentum momentum_;
  ScaledHyper apply_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const MuonOptions& options) { return std::make_unique<Muon>(options); }

}  // namespace dmuon
