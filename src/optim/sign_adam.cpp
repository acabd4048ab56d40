#include "dmuon/optim/sign_adam.h"

#include <cmath>

#include "optim/vote_update.h"

namespace dmuon {
namespace {

class SignAdam final : public UpdateRule {
 public:
  explicit SignAdam(const SignAdamOptions& options) : options_(options), vote_("sign_adam", options) {
    check_range("sign_adam", "beta1", options.beta1, 0.0, 1.0, true);
    check_range("sign_adam", "beta2", options.beta2, 0.0, 1.0, true);
    check_range("sign_adam", "epsilon", options.epsilon, 0.0, 1.0);
  }

  std::string name() const override { return "sign_adam"; }
  Agreement agreement() const override { return Agreement::vote; }
  Cutting cutting() const override { return Cutting::anywhere; }
  std::vector<StateSpecification> state() const override { return {{"first_moment"}, {"second_moment"}}; }
  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("beta1", options_.beta1);
    result.set("beta2", options_.beta2);
    result.set("epsilon", options_.epsilon);
    vote_.describe(result);
    return result;
  }
  double flops(const Shape& shape) const override { return 16.0 * static_cast<double>(shape.elements()); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    values_ = values;
    vote_.prepare(backend, stream, values);
    for (Hyper& each : hypers_) write(backend, stream, each);
  }

  // The raw gradient is the message: the halves differ only in what they may read.
  void local(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) vote_.begin_local(backend, stream, item);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) {
      check_states(*this, item);
      Tensor signs = item.gradient;
      if (!signs.defined())
        signs = backend.allocate(item.parameter.shape(), item.parameter.dtype(), MemoryCategory::workspace, "agreed signs");
      vote_.unpack(backend, stream, item, signs);
      backend.optimizer().adamw(
          stream, {item.parameter, signs, item.state[0], item.state[1], hyper(backend, stream, vote_.factor(item)), item.published});
    }
  }

 private:
  struct Hyper {
    double factor;
    HyperTensor tensor;
  };

  const Tensor& hyper(Backend& backend, Stream& stream, double factor) {
    for (const Hyper& each : hypers_)
      if (each.factor == factor) return each.tensor.tensor();
    hypers_.push_back({factor, {}});
    write(backend, stream, hypers_.back());
    return hypers_.back().tensor.tensor();
  }

  void write(Backend& backend, Stream& stream, Hyper& each) const {
    std::array<double, AdamWPass::count> hyper{};
    hyper[AdamWPass::learning_rate] = values_.learning_rate;
    hyper[AdamWPass::beta1] = options_.beta1;
    hyper[AdamWPass::beta2] = options_.beta2;
    hyper[AdamWPass::epsilon] = options_.epsilon;
    hyper[AdamWPass::weight_decay] = vote_.decoupled_decay();
    // The factor multiplies the direction, not the rate: so the decay is exactly learning_rate * weight_decay.
    hyper[AdamWPass::correction1] = (1.0 - std::pow(options_.beta1, static_cast<double>(values_.step))) / each.factor;
    hyper[AdamWPass::correction2] = 1.0 - std::pow(options_.beta2, static_cast<double>(values_.step));
    hyper[AdamWPass::gradient_scale] = 1.0;
    each.tensor.write(backend, stream, hyper);
  }

  SignAdamOptions options_;
  VoteUpdate vote_;
  StepValues values_;
  std::vector<Hyper> hypers_;  // one for each factor that has been seen
};

}  // namespace

std::unique_ptr<UpdateRule> make_sign_adam(const SignAdamOptions& options) { return std::make_unique<SignAdam>(options); }

}  // namespace dmuon
