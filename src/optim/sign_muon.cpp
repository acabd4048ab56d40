#include "dmuon/optim/sign_muon.h"

#include <algorithm>
#include <cmath>

#include "optim/orthogonal_momentum.h"
#include "optim/vote_update.h"

namespace dmuon {
namespace {

class SignMuon final : public UpdateRule {
 public:
  explicit SignMuon(const SignMuonOptions& options) : options_(options), momentum_("sign_muon", options), vote_("sign_muon", options) {
    if (options.post_polar && options.rate_shape != RateShape::none)
      throw ConfigError(text("sign_muon: with post_polar the step is orthogonal and has the unit gain of its shape by itself; rate_shape ",
                             name_of(options.rate_shape), " is one for steps along signs, use none"));
  }

  std::string name() const override { return "sign_muon"; }
  Agreement agreement() const override { return Agreement::vote; }
  Cutting cutting() const override { return Cutting::whole; }
  bool per_head() const override { return options_.per_head; }
  std::vector<StateSpecification> state() const override { return {{"momentum", true}}; }
  int newton_schulz_calls() const override { return options_.post_polar ? 2 : 1; }
  UpdateCounters counters() const override { return momentum_.counters(); }

  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    momentum_.describe(result);
    vote_.describe(result);
    result.set("post_polar", options_.post_polar);
    result.set("logical_view", "rows_of_dimension_0");
    return result;
  }
  double flops(const Shape& shape) const override { return newton_schulz_calls() * momentum_.flops(shape); }

  Json tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache* cache) override {
    return momentum_.tune(backend, shapes, cache);
  }
  void adopt(const Json& choices) override { momentum_.adopt(choices); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    momentum_.prepare(backend, stream, values);
    vote_.prepare(backend, stream, values);
    polar_apply_.prepare(backend, stream, values.learning_rate, vote_.decoupled_decay());
  }

  void local(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) vote_.begin_local(backend, stream, item);
    momentum_.run(*this, backend, stream, items, true, [&](UpdateItem& item, const Shape& shape, const Tensor& orthogonal) {
      if (orthogonal.raw() != item.gradient.raw()) backend.copy(stream, orthogonal, item.gradient.reshape(shape));
    });
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    if (!options_.post_polar) {
      for (const UpdateItem& item : items) vote_.apply(backend, stream, item);
      return;
    }
    MatrixItems matrices = momentum_.matrices_of(items);
    size_t unpacked = items.size();  // the item whose votes `votes` holds: the matrices of one item follow one another
    Tensor votes;
    momentum_.for_batches(matrices.items, [&](const Shape& shape, std::span<UpdateItem* const> batch, int queues) {
      std::vector<Tensor> messages;
      for (const UpdateItem* matrix : batch) {
        const auto [from, first] = matrices.origins[static_cast<size_t>(matrix - matrices.items.data())];
        if (from != unpacked) {
          const UpdateItem& item = items[from];
          votes = backend.allocate(item.parameter.shape(), item.parameter.dtype(), MemoryCategory::workspace, "votes");
          vote_.unpack(backend, stream, item, votes);
          unpacked = from;
        }
        messages.push_back(votes.flat(first, shape.elements()).reshape(shape));
      }
      const std::vector<Tensor> orthogonal = momentum_.orthogonalize(backend, stream, messages, queues);
      for (size_t i = 0; i < batch.size(); ++i) step_along(backend, stream, *batch[i], shape, orthogonal[i]);
    });
  }

 private:
  void step_along(Backend& backend, Stream& stream, const UpdateItem& item, const Shape& shape, const Tensor& orthogonal) {
    MuonApply apply;
    apply.parameter = item.parameter.reshape(shape);
    apply.update = orthogonal;
    apply.hyper = polar_apply_.of(backend, stream, std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1]))));
    if (item.published.defined()) apply.published = item.published.reshape(shape);
    backend.optimizer().muon_apply(stream, apply);
  }

  SignMuonOptions options_;
  OrthogonalMomentum momentum_;
  VoteUpdate vote_;
  ScaledHyper polar_apply_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sign_muon(const SignMuonOptions& options) { return std::make_unique<SignMuon>(options); }

}  // namespace dmuon
