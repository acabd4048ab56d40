#include "dmuon/optim/adamw.h"

#include <cmath>

#include "optim/rule_support.h"

namespace dmuon {
namespace {

class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {
    check_range("adamw", "beta1", options.beta1, 0.0, 1.0, true);
    check_range("adamw", "beta2", options.beta2, 0.0, 1.0, true);
    check_range("adamw", "epsilon", options.epsilon, 0.0, 1.0);
    check_range("adamw", "weight_decay", options.weight_decay, 0.0, 1e6);
  }

  std::string name() const override { return "adamw"; }
  Cutting cutting() const override { return Cutting::anywhere; }
  std::vector<StateSpecification> state() const override { return {{"first_moment"}, {"second_moment"}}; }
  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("beta1", options_.beta1);
    result.set("beta2", options_.beta2);
    result.set("epsilon", options_.epsilon);
    result.set("weight_decay", options_.weight_decay);
    result.set("weight_decay_mode", "decoupled_base_learning_rate");
    return result;
  }
  double flops(const Shape& shape) const override { return 16.0 * static_cast<double>(shape.elements()); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    std::array<double, AdamWPass::count> hyper{};
    hyper[AdamWPass::learning_rate] = values.learning_rate;
    hyper[AdamWPass::beta1] = options_.beta1;
    hyper[AdamWPass::beta2] = options_.beta2;
    hyper[AdamWPass::epsilon] = options_.epsilon;
    hyper[AdamWPass::weight_decay] = options_.weight_decay;
    hyper[AdamWPass::correction1] = 1.0 - std::pow(options_.beta1, static_cast<double>(values.step));
    hyper[AdamWPass::correction2] = 1.0 - std::pow(options_.beta2, static_cast<double>(values.step));
    hyper[AdamWPass::gradient_scale] = values.gradient_scale;
    hyper_.write(backend, stream, hyper);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) {
      check_item(*this, item);
      backend.optimizer().adamw(stream, {item.parameter, item.gradient, item.state[0], item.state[1], hyper_.tensor(), item.published});
    }
  }

 private:
  AdamWOptions options_;
  HyperTensor hyper_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(const AdamWOptions& options) { return std::make_unique<AdamW>(options); }

}  // namespace dmuon
