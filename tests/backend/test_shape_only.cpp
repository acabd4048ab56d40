#include "backend/host_backend.h"
#include "dmuon/backend/backend.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

// Something like a step: allocations that live and die in different categories, and a kernel of every family.
void walk(Backend& backend) {
  Stream& stream = backend.compute_stream();
  const auto allocate = [&](const Shape& shape, MemoryCategory category, DType dtype = DType::float32) {
    Tensor tensor = backend.allocate(shape, dtype, category, "walk");
    backend.zero(stream, tensor);
    return tensor;
  };
  const int64_t B = 2, T = 5, C = 12, V = 9;
  const Tensor weight = allocate({C, C}, MemoryCategory::parameters), gain = allocate({C}, MemoryCategory::parameters);
  const Tensor table = allocate({V, C}, MemoryCategory::parameters), tokens = allocate({B, T}, MemoryCategory::data, DType::int32);
  const Tensor d_weight = allocate({C, C}, MemoryCategory::gradients);
  const Tensor hyper = allocate({8}, MemoryCategory::workspace, DType::float64);
  {
    const Tensor x = allocate({B, T, C}, MemoryCategory::activations), y = allocate({B, T, C}, MemoryCategory::activations);
    EmbeddingForward embedding;
    embedding.tokens = tokens;
    embedding.token_table = table;
    embedding.output = x;
    backend.embedding_loss().embedding_forward(stream, embedding);

    NormalizationForward norm;
    norm.input = x;
    norm.weight = gain;
    norm.output = y;
    norm.mean = allocate({B * T}, MemoryCategory::activations);
    norm.inverse_deviation = allocate({B * T}, MemoryCategory::activations);
    backend.normalization().forward(stream, norm);

    Multiply product;
    product.a = y;
    product.b = weight;
    product.transpose_b = true;
    product.c = x;
    backend.matrix().multiply(stream, product);

    AttentionForward attention;
    attention.query = attention.key = attention.value = x.reshape({B, T, 3, 4});
    attention.output = y.reshape({B, T, 3, 4});
    backend.attention().forward(stream, attention);

    ActivationForward activation;
    activation.input = y;
    activation.output = y;
    backend.activation().forward(stream, activation);

    Multiply outer;
    outer.a = y;
    outer.transpose_a = true;
    outer.b = x;
    outer.c = d_weight;
    backend.matrix().multiply(stream, outer);
  }
  MuonMomentum momentum;
  momentum.gradient = d_weight;
  momentum.momentum_buffer = allocate({C, C}, MemoryCategory::optimizer_state);
  momentum.update = allocate({C, C}, MemoryCategory::workspace);
  momentum.hyper = hyper;
  backend.optimizer().muon_momentum(stream, momentum);
  BatchedProduct symmetric;
  symmetric.a = symmetric.b = {momentum.update};
  symmetric.transpose_b = symmetric.symmetric = true;
  symmetric.d = {allocate({C, C}, MemoryCategory::workspace)};
  backend.matrix().batched_product(stream, symmetric);
  CHECK(to_doubles(backend, symmetric.d[0]).size() == static_cast<size_t>(C * C));
}

}  // namespace

TEST_CASE("a shape-only pass predicts peaks, calls and FLOPs of the real run") {
  BackendOptions options;
  auto real = kernel_suite::open_reference();
  options.mode = HostMode::shape_only;
  auto shapes = kernel_suite::open_reference(options);
  CHECK(shapes->shape_only());
  CHECK_FALSE(real->shape_only());
  walk(*real);
  walk(*shapes);
  const MemoryStatistics expected = real->allocator().statistics(), found = shapes->allocator().statistics();
  for (size_t i = 0; i < expected.categories.size(); ++i) {
    CAPTURE(name_of(static_cast<MemoryCategory>(i)));
    CHECK(found.categories[i].peak == expected.categories[i].peak);
    CHECK(found.categories[i].current == expected.categories[i].current);
  }
  CHECK(found.total.peak == expected.total.peak);
  CHECK(expected[MemoryCategory::activations].peak > 0);
  const auto real_costs = real->costs(), shape_costs = shapes->costs();
  CHECK(real_costs.size() == shape_costs.size());
  for (const auto& [name, cost] : real_costs) {
    CAPTURE(name);
    REQUIRE(shape_costs.contains(name));
    CHECK(shape_costs.at(name).calls == cost.calls);
    CHECK(shape_costs.at(name).flops == cost.flops);
  }
  // Multiply-adds, counted by hand: two products of [10, 12] x [12, 12]; causal attention over half of 5 x 5 pairs with
  // 3 heads of 4 in 2 sequences; the lower triangle of a 12 x 12 product.
  CHECK(real_costs.at("multiply").flops == 2 * 2 * 10 * 12 * 12);
  CHECK(real_costs.at("attention_forward").flops == 4 * 2 * 3 * 4 * 25 / 2);
  CHECK(real_costs.at("batched_product").flops == 2 * (12 * 13 / 2) * 12);
}

TEST_CASE("a shape-only pass touches no memory: copies to the host give zeros, copies from it are ignored") {
  BackendOptions options;
  options.mode = HostMode::shape_only;
  auto backend = kernel_suite::open_reference(options);
  const Tensor tensor = backend->allocate({3}, DType::float32, MemoryCategory::data, "test");
  CHECK(tensor.raw() == nullptr);
  from_doubles(*backend, std::vector<double>{1, 2, 3}, tensor);
  CHECK(to_doubles(*backend, tensor) == std::vector<double>{0, 0, 0});
  backend->copy_from_host(backend->compute_stream(), nullptr, tensor);
  // 4 TB cost nothing.
  const Tensor huge = backend->allocate({1 << 20, 1 << 20}, DType::float32, MemoryCategory::parameters, "huge");
  backend->zero(backend->compute_stream(), huge);
  CHECK(backend->allocator().statistics()[MemoryCategory::parameters].current == int64_t{1} << 42);
}

TEST_CASE("a communication stream of a shape-only pass needs no memory either") {
  BackendOptions options;
  options.mode = HostMode::shape_only;
  auto backend = kernel_suite::open_reference(options);
  auto stream = backend->make_communication_stream("test");
  const Tensor tensor = backend->allocate({3}, DType::float32, MemoryCategory::data, "test");
  backend->copy(*stream, tensor, backend->allocate({3}, DType::bfloat16, MemoryCategory::data, "test"));
  CHECK_NOTHROW(stream->synchronize());
}
