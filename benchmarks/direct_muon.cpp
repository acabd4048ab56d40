#include "direct_muon.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dmuon::bench {
namespace {

class DirectMuon final : public UpdateRule {
 public:
  explicit DirectMuon(const MuonOptions& options) : options_(options), set_(coefficient_set(options.newton_schulz.coefficients)) {}

  std::string name() const override { return "muon"; }
  Cutting cutting() const override { return Cutting::whole; }
  std::vector<StateSpecification> state() const override { return {{"momentum"}}; }
  int newton_schulz_calls() const override { return 1; }
  UpdateCounters counters() const override { return counters_; }
  Json description() const override {
    Json out = Json::object();
    out.set("rule", "direct Newton-Schulz on full products");
    return out;
  }
  // Three full products an iteration.
  double flops(const Shape& shape) const override {
    const double side = static_cast<double>(std::min(shape[0], shape[1])), elements = static_cast<double>(shape.elements());
    return set_.iterations * (4.0 * side * elements + 2.0 * side * side * side);
  }

  void prepare(Backend& backend, Stream& stream, const StepValues& values) override {
    values_ = values;
    std::array<double, MuonMomentum::count> momentum{};
    momentum[MuonMomentum::momentum] = muon_momentum(options_, values.step);
    momentum[MuonMomentum::gradient_scale] = values.gradient_scale;
    write(backend, stream, momentum_hyper_, momentum);
  }

  void global(Backend& backend, Stream& stream, std::span<UpdateItem> items) override {
    for (const UpdateItem& item : items) update(backend, stream, item);
    counters_.newton_schulz_calls += static_cast<int64_t>(items.size());
  }

 private:
  static void write(Backend& backend, Stream& stream, Tensor& tensor, std::span<const double> values) {
    if (!tensor.defined())
      tensor = backend.allocate({static_cast<int64_t>(values.size())}, DType::float64, MemoryCategory::optimizer_state, "hyper-parameters");
    backend.copy_from_host(stream, values.data(), tensor);
  }

  void update(Backend& backend, Stream& stream, const UpdateItem& item) {
    const Shape shape = item.parameter.shape();
    const Tensor momentum = backend.allocate(shape, DType::float32, MemoryCategory::workspace, "Muon update");
    const Tensor sums = backend.allocate({(shape.elements() + 16383) / 16384}, DType::float64, MemoryCategory::workspace, "norm");
    MuonMomentum pass;
    pass.sum_form = options_.momentum_form == MomentumForm::sum;
    pass.nesterov = options_.nesterov;
    pass.gradient = item.gradient, pass.momentum_buffer = item.state[0], pass.update = momentum;
    pass.square_sums = sums;
    pass.hyper = momentum_hyper_;
    backend.optimizer().muon_momentum(stream, pass);
    double square = 0.0;
    for (double sum : to_doubles(backend, sums)) square += sum;

    std::array<double, MuonApply::count> values{};
    values[MuonApply::learning_rate] = values_.learning_rate;
    values[MuonApply::weight_decay] = options_.weight_decay;
    values[MuonApply::scale] = options_.scale_factor * muon_scale(options_.scale, shape[0], shape[1]);
    write(backend, stream, apply_hyper_, values);
    MuonApply apply;
    apply.parameter = item.parameter, apply.update = orthogonalize(backend, stream, momentum, 1.0 / std::max(std::sqrt(square), 1e-15));
    apply.hyper = apply_hyper_;
    apply.published = item.published;
    backend.optimizer().muon_apply(stream, apply);
  }

  // X <- a X + b (X X^T) X + c (X X^T)^2 X; `a` goes to the diagonal of the factor, so that no pass over X is spent on it.
  Tensor orthogonalize(Backend& backend, Stream& stream, Tensor current, double scale) {
    const Shape shape = current.shape();
    const bool tall = shape[0] > shape[1];
    const int64_t side = std::min(shape[0], shape[1]);
    const Tensor gram = backend.allocate({side, side}, DType::float32, MemoryCategory::workspace, "Gram matrix");
    const Tensor factor = backend.allocate({side, side}, DType::float32, MemoryCategory::workspace, "factor");
    const Tensor other = backend.allocate(shape, DType::float32, MemoryCategory::workspace, "next X");
    std::array<Tensor, 2> x{other, current};
    for (int i = 0; i < set_.iterations; ++i, scale = 1.0) {
      const auto& [a, b, c] = set_.rows[static_cast<size_t>(i)];
      Multiply product;
      product.a = product.b = current, product.c = gram, product.alpha = scale * scale;
      (tall ? product.transpose_a : product.transpose_b) = true;
      backend.matrix().multiply(stream, product);
      backend.copy(stream, gram, factor);
      Multiply square;
      square.a = square.b = gram, square.c = factor, square.alpha = c, square.beta = b;
      backend.matrix().multiply(stream, square);
      stream.synchronize();
      for (int64_t d = 0; d < side; ++d) factor.data<float>()[d * (side + 1)] += static_cast<float>(a);
      Multiply step;
      step.a = tall ? current : factor, step.b = tall ? factor : current, step.c = x[static_cast<size_t>(i % 2)], step.alpha = scale;
      backend.matrix().multiply(stream, step);
      current = step.c;
    }
    return current;
  }

  MuonOptions options_;
  const CoefficientSet& set_;
  StepValues values_;
  Tensor momentum_hyper_, apply_hyper_;
  UpdateCounters counters_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_direct_muon(const MuonOptions& options) { return std::make_unique<DirectMuon>(options); }

}  // namespace dmuon::bench
