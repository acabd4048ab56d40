#include "dmuon/optim/sgd.h"

#include "optim/rule_support.h"

namespace dmuon {
namespace {

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {
    check_range("sgd", "momentum", options.momentum, 0.0, 1.0, true);
    check_range("sgd", "dampening", options.dampening, 0.0, 1.0);
    check_range("sgd", "weight_decay", options.weight_decay, 0.0, 1e6);
  }

  std::string name() const override { return "sgd"; }
  Cutting cutting() const override { return Cutting::anywhere; }
  std::vector<StateSpecification> state() const override { return {{"momentum"}}; }
  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("momentum", options_.momentum);
    result.set("dampening", options_.dampening);
    result.set("nesterov", options_.nesterov);
    result.set("weight_decay", options_.weight_decay);
    result.set("weight_decay_mode", "decoupled_base_learning_rate");
    return result;
  }
  double flops(const Shape& shape) const override { return 8.0 * static_cast<double>(shape.elements()); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    std::array<double, SgdPass::count> hyper{};
    hyper[SgdPass::learning_rate] = values.learning_rate;
    hyper[SgdPass::momentum] = options_.momentum;
    hyper[SgdPass::dampening] = options_.dampening;
    hyper[SgdPass::weight_decay] = options_.weight_decay;
    hyper[SgdPass::gradient_scale] = values.gradient_scale;
    hyper[SgdPass::first_step] = values.step <= 1 ? 1.0 : 0.0;
    hyper[SgdPass::nesterov] = options_.nesterov ? 1.0 : 0.0;
    hyper_.write(backend, stream, hyper);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) {
      check_item(*this, item);
      backend.optimizer().sgd(stream, {item.parameter, item.gradient, item.state[0], hyper_.tensor(), item.published});
    }
  }

 private:
  SgdOptions options_;
  HyperTensor hyper_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const SgdOptions& options) { return std::make_unique<Sgd>(options); }

}  // namespace dmuon
