// The kernels between the matrix products, on the shapes of training: those that move memory against the triad, attention
// against the matrix product.
#include "dmuon/core/text.h"
#include "support.h"

namespace dmuon::bench {
namespace {

class Kernels {
 public:
  explicit Kernels(const Arguments& arguments)
      : arguments_(arguments), backend_(make_backend(arguments)), stream_(backend_->compute_stream()), triad_(arguments.threads) {
    product_.a = random_tensor(*backend_, {768, 768}), product_.b = random_tensor(*backend_, {768, 768}), product_.c = like({768, 768});
  }

  Tensor like(const Shape& shape) { return random_tensor(*backend_, shape); }
  Tensor indices(const Shape& shape, int64_t bound) {
    const Tensor tensor = backend_->allocate(shape, DType::int32, MemoryCategory::data, "indices");
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 7919) % static_cast<size_t>(bound));
    from_doubles(*backend_, values, tensor);
    return tensor;
  }
  Backend& backend() { return *backend_; }
  Stream& stream() { return stream_; }
  Json::Array take() { return std::move(rows_); }

  // `floats` read or written once by an ideal pass.
  void memory(const std::string& kernel, const std::string& sizes, int64_t floats, const std::function<void()>& run) {
    const Comparison result = compare(
        arguments_, [&] { triad_.run(); }, run);
    add(kernel, sizes, "triad", result, 4.0 * static_cast<double>(floats) / triad_.bytes());
  }
  void compute(const std::string& kernel, const std::string& sizes, double flops, const std::function<void()>& run) {
    const Comparison result = compare(
        arguments_, [&] { backend_->matrix().multiply(stream_, product_); }, run);
    add(kernel, sizes, "multiply", result, flops / (2.0 * 768 * 768 * 768));
  }

 private:
  void add(const std::string& kernel, const std::string& sizes, const char* limit, const Comparison& result, double factor) {
    Json row = Json::object();
    row.set("kernel", kernel);
    row.set("sizes", sizes);
    row.set("milliseconds", result.b_seconds * 1e3);
    row.set("limit", limit);
    row.set("fraction_of_limit", result.ratio.median * factor);
    row.set("lower_quartile", result.ratio.lower_quartile * factor);
    row.set("upper_quartile", result.ratio.upper_quartile * factor);
    rows_.push_back(std::move(row));
  }

  Arguments arguments_;
  std::unique_ptr<Backend> backend_;
  Stream& stream_;
  Triad triad_;
  Multiply product_;
  Json::Array rows_;
};

void attention(Kernels& k, int64_t B, int64_t T, int64_t H, int64_t D) {
  AttentionForward f;
  f.query = k.like({B, T, H, D}), f.key = k.like({B, T, H, D}), f.value = k.like({B, T, H, D}), f.output = k.like({B, T, H, D});
  f.log_sum_exp = k.like({B, H, T});
  f.scale = 0.125;
  const std::string sizes = text("B ", B, " T ", T, " H ", H, " D ", D);
  const double forward_flops = 2.0 * static_cast<double>(B * H * T * (T + 1) * D);
  k.compute("attention_forward", sizes, forward_flops, [&] { k.backend().attention().forward(k.stream(), f); });
  AttentionBackward b;
  b.forward = f, b.d_output = k.like({B, T, H, D}), b.d_query = k.like({B, T, H, D}), b.d_key = k.like({B, T, H, D});
  b.d_value = k.like({B, T, H, D});
  // Five products: the scores are computed again.
  k.compute("attention_backward", sizes, 2.5 * forward_flops, [&] { k.backend().attention().backward(k.stream(), b); });
}

void rows(Kernels& k, int64_t N, int64_t C) {
  const int64_t all = N * C;
  const std::string sizes = text("N ", N, " C ", C), wide = text("N ", N, " C ", 4 * C);
  NormalizationForward f;
  f.input = k.like({N, C}), f.branch = k.like({N, C}), f.branch_bias = k.like({C}), f.residual = k.like({N, C}), f.weight = k.like({C});
  f.bias = k.like({C}), f.output = k.like({N, C}), f.mean = k.like({N}), f.inverse_deviation = k.like({N});
  k.memory("normalization_forward", sizes, 4 * all, [&] { k.backend().normalization().forward(k.stream(), f); });
  NormalizationBackward b;
  b.d_output = k.like({N, C}), b.d_residual = k.like({N, C}), b.normalized_input = f.residual, b.mean = f.mean;
  b.inverse_deviation = f.inverse_deviation, b.weight = f.weight, b.d_input = k.like({N, C}), b.d_branch_bias = k.like({C});
  b.d_weight = k.like({C}), b.d_bias = k.like({C});
  k.memory("normalization_backward", sizes, 4 * all, [&] { k.backend().normalization().backward(k.stream(), b); });
  for (const auto& [kind, name] : {std::pair{ActivationKind::gelu_tanh, "gelu_tanh"}, std::pair{ActivationKind::gelu, "gelu"}}) {
    ActivationForward af;
    af.kind = kind, af.input = k.like({N, 4 * C}), af.bias = k.like({4 * C}), af.output = k.like({N, 4 * C});
    k.memory(text(name, "_forward"), wide, 8 * all, [&] { k.backend().activation().forward(k.stream(), af); });
    ActivationBackward ab;
    ab.kind = kind, ab.input = af.input, ab.bias = af.bias, ab.d_output = af.output, ab.d_input = k.like({N, 4 * C}),
    ab.d_bias = k.like({4 * C});
    k.memory(text(name, "_backward"), wide, 12 * all, [&] { k.backend().activation().backward(k.stream(), ab); });
  }
  ColumnSum s{k.like({N, 4 * C}), k.like({4 * C})};
  k.memory("column_sum", wide, 4 * all, [&] { k.backend().matrix().column_sum(k.stream(), s); });
  EmbeddingForward e;
  e.tokens = k.indices({1, N}, 50257), e.positions = k.indices({1, N}, 1024), e.token_table = k.like({50257, C});
  e.position_table = k.like({1024, C}), e.output = k.like({1, N, C});
  k.memory("embedding_forward", sizes, 3 * all, [&] { k.backend().embedding_loss().embedding_forward(k.stream(), e); });
  EmbeddingBackward eb;
  eb.tokens = e.tokens, eb.positions = e.positions, eb.d_output = e.output, eb.d_token_table = e.token_table;
  eb.d_position_table = e.position_table, eb.accumulate_token_table = eb.accumulate_position_table = true;
  k.memory("embedding_backward", sizes, 6 * all, [&] { k.backend().embedding_loss().embedding_backward(k.stream(), eb); });
  ApplyDropout d{k.like({N, C}), k.like({N, C}), {0.1, 1, 0, 1}};
  k.memory("dropout", sizes, 2 * all, [&] { k.backend().activation().dropout(k.stream(), d); });
}

Json::Array run(const Arguments& arguments) {
  Kernels k(arguments);
  attention(k, 4, 256, 12, 64);
  attention(k, 1, 1024, 12, 64);
  attention(k, 12, 64, 4, 32);
  rows(k, 1024, 768);
  rows(k, 4096, 384);
  SoftmaxCrossEntropy loss;
  loss.logits = k.like({256, 50257}), loss.targets = k.indices({256}, 50257), loss.losses = k.like({256}), loss.classes = 50257;
  loss.write_gradient = true;
  k.memory("softmax_cross_entropy", "N 256 V 50257", 2 * 256 * 50257,
           [&] { k.backend().embedding_loss().softmax_cross_entropy(k.stream(), loss); });
  return k.take();
}

}  // namespace

Benchmark kernels_benchmark() {
  return {"kernels", "Kernels between the products: fraction of the triad's bandwidth or of a 768^3 product's speed", {}, run};
}

}  // namespace dmuon::bench
