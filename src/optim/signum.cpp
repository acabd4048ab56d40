#include "dmuon/optim/signum.h"

#include "optim/vote_update.h"

namespace dmuon {
namespace {

class Signum final : public UpdateRule {
 public:
  explicit Signum(const SignumOptions& options) : options_(options), vote_("signum", options) {
    check_range("signum", "momentum", options.momentum, 0.0, 1.0, true);
  }

  std::string name() const override { return "signum"; }
  Agreement agreement() const override { return Agreement::vote; }
  Cutting cutting() const override { return Cutting::anywhere; }
  std::vector<StateSpecification> state() const override {
    if (options_.momentum == 0.0) return {};
    return {{"momentum", true}};
  }
  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("momentum_form", name_of(options_.momentum_form));
    result.set("nesterov", options_.nesterov);
    result.set("momentum", options_.momentum);
    vote_.describe(result);
    return result;
  }
  double flops(const Shape& shape) const override { return 8.0 * static_cast<double>(shape.elements()); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    std::array<double, MuonMomentum::count> hyper{};
    hyper[MuonMomentum::momentum] = options_.momentum;
    hyper[MuonMomentum::gradient_scale] = values.gradient_scale;
    momentum_hyper_.write(backend, stream, hyper);
    vote_.prepare(backend, stream, values);
  }

  void local(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) {
      check_states(*this, item);
      vote_.begin_local(backend, stream, item);
      if (options_.momentum == 0.0) continue;  // the gradient is the message, its scale has no sign
      MuonMomentum momentum;
      momentum.sum_form = options_.momentum_form == MomentumForm::sum;
      momentum.nesterov = options_.nesterov;
      momentum.gradient = momentum.update = item.gradient;
      momentum.momentum_buffer = item.state[0];
      momentum.hyper = momentum_hyper_.tensor();
      backend.optimizer().muon_momentum(stream, momentum);
    }
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) vote_.apply(backend, stream, item);
  }

 private:
  SignumOptions options_;
  VoteUpdate vote_;
  HyperTensor momentum_hyper_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_signum(const SignumOptions& options) { return std::make_unique<Signum>(options); }

}  // namespace dmuon
