#include "dmuon/optim/lion.h"

#include <algorithm>

#include "optim/vote_update.h"

namespace dmuon {
namespace {

constexpr int64_t block = int64_t{1} << 18;  // elements of the scratch

class Lion final : public UpdateRule {
 public:
  explicit Lion(const LionOptions& options) : options_(options), vote_("lion", options) {
    check_range("lion", "beta1", options.beta1, 0.0, 1.0, true);
    check_range("lion", "beta2", options.beta2, 0.0, 1.0, true);
  }

  std::string name() const override { return "lion"; }
  Agreement agreement() const override { return Agreement::vote; }
  Cutting cutting() const override { return Cutting::anywhere; }
  std::vector<StateSpecification> state() const override { return {{"momentum", true}}; }
  Json description() const override {
    Json result = Json::object();
    result.set("rule", name());
    result.set("beta1", options_.beta1);
    result.set("beta2", options_.beta2);
    vote_.describe(result);
    return result;
  }
  double flops(const Shape& shape) const override { return 10.0 * static_cast<double>(shape.elements()); }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    gradient_scale_ = values.gradient_scale;
    std::array<double, MuonMomentum::count> hyper{};
    hyper[MuonMomentum::momentum] = options_.beta2;
    hyper[MuonMomentum::gradient_scale] = values.gradient_scale;
    momentum_hyper_.write(backend, stream, hyper);
    vote_.prepare(backend, stream, values);
  }

  void local(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) {
      check_states(*this, item);
      vote_.begin_local(backend, stream, item);
      const int64_t elements = item.gradient.elements();
      const Tensor scratch = backend.allocate(Shape{std::min(block, elements)}, item.gradient.dtype(), MemoryCategory::workspace, "Lion");
      for (int64_t first = 0; first < elements; first += block) {
        const int64_t count = std::min(block, elements - first);
        mix(backend, stream, item.gradient.flat(first, count), item.state[0].flat(first, count), scratch.flat(0, count));
      }
    }
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) vote_.apply(backend, stream, item);
  }

 private:
  // message = (1 - beta1) g + beta1 m, made aside because the momentum needs both of its inputs.
  void mix(Backend& backend, Stream& stream, const Tensor& gradient, const Tensor& momentum_buffer, const Tensor& message) {
    backend.activation().scaled_add(stream, {gradient, message, (1.0 - options_.beta1) * gradient_scale_, false});
    backend.activation().scaled_add(stream, {momentum_buffer, message, options_.beta1, true});
    MuonMomentum momentum;
    momentum.nesterov = false;
    momentum.gradient = momentum.update = gradient;
    momentum.momentum_buffer = momentum_buffer;
    momentum.hyper = momentum_hyper_.tensor();
    backend.optimizer().muon_momentum(stream, momentum);
    backend.copy(stream, message, gradient);
  }

  LionOptions options_;
  VoteUpdate vote_;
  double gradient_scale_ = 1.0;
  HyperTensor momentum_hyper_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_lion(const LionOptions& options) { return std::make_unique<Lion>(options); }

}  // namespace dmuon
