// Attention in both dtypes: every head size that has its own tiles and sizes between, tiles that are full, just begun and just
// missed, and tensors that begin anywhere in memory.
#include "cuda_on_host/model_case.h"
#include "dmuon/core/error.h"

using namespace dmuon;
using namespace model_case;

namespace {

struct Problem {
  int64_t B, T, S, H, G, D;
  bool causal = true;
  int64_t key_offset = 0;
  double dropout = 0;
};

std::string name_of(const Problem& p) {
  return text("attention B", p.B, " T", p.T, " S", p.S, " H", p.H, " G", p.G, " D", p.D, p.causal ? " causal " : " ");
}

void attention(ModelCase& c, const Problem& p) {
  const Shape of_query{p.B, p.T, p.H, p.D}, of_key{p.B, p.S, p.G, p.D};
  const Pair query = c.normal(of_query), key = c.normal(of_key), value = c.normal(of_key), d_output = c.normal(of_query);
  const Pair output = c.output(of_query), log_sum_exp = c.float_output({p.B, p.H, p.T});
  const Pair d_query = c.output(of_query), d_key = c.output(of_key), d_value = c.output(of_key);
  c.on_both([&](Backend& backend, auto pick) {
    AttentionBackward b;
    AttentionForward& f = b.forward;
    f.query = pick(query), f.key = pick(key), f.value = pick(value), f.output = pick(output), f.log_sum_exp = pick(log_sum_exp);
    f.scale = 1.0 / std::sqrt(static_cast<double>(p.D));
    f.causal = p.causal, f.key_offset = p.key_offset;
    f.dropout = {.probability = p.dropout, .seed = 77, .first_sequence = 5, .sequences = p.B};
    backend.attention().forward(backend.compute_stream(), f);
    b.d_output = pick(d_output), b.d_query = pick(d_query), b.d_key = pick(d_key), b.d_value = pick(d_value);
    backend.attention().backward(backend.compute_stream(), b);
  });
  const std::string name = name_of(p);
  c.check(name + "output", output);
  c.check(name + "log_sum_exp", log_sum_exp);
  c.check(name + "d_query", d_query);
  c.check(name + "d_key", d_key);
  c.check(name + "d_value", d_value);
}

void in_both_dtypes(const Problem& p) {
  const auto reference = kernel_suite::open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    ModelCase aligned(*backend, *reference, dtype), shifted(*backend, *reference, dtype, 5);
    attention(aligned, p);
    attention(shifted, p);
    INFO(name_of(p) << dmuon::name_of(dtype));
    CHECK(aligned.outputs() == shifted.outputs());
  }
}

}  // namespace

TEST_CASE("attention with heads of every size that has its own tiles") {
  for (int64_t D : {32, 64, 96, 128, 256}) in_both_dtypes({.B = 1, .T = 33, .S = 34, .H = 2, .G = 1, .D = D, .key_offset = 1});
}

TEST_CASE("attention with heads between the sizes of tiles") {
  for (int64_t D : {1, 40, 80, 100, 160}) in_both_dtypes({.B = 1, .T = 9, .S = 9, .H = 2, .G = 2, .D = D});
}

TEST_CASE("attention at the edges of tiles") {
  for (int64_t T : {1, 32, 63, 64, 65, 129}) in_both_dtypes({.B = 1, .T = T, .S = T, .H = 1, .G = 1, .D = 16});
}

TEST_CASE("attention over a cache of keys, without a causal mask, in groups and with dropout") {
  in_both_dtypes({.B = 2, .T = 1, .S = 70, .H = 4, .G = 2, .D = 24, .key_offset = 69});
  in_both_dtypes({.B = 1, .T = 3, .S = 80, .H = 2, .G = 2, .D = 32, .key_offset = 40});
  in_both_dtypes({.B = 1, .T = 70, .S = 33, .H = 2, .G = 1, .D = 32, .causal = false});
  in_both_dtypes({.B = 2, .T = 40, .S = 40, .H = 2, .G = 1, .D = 24, .dropout = 0.3});
}

TEST_CASE("attention keeps every element of a long row in the softmax when scores are large") {
  const auto reference = kernel_suite::open_reference();
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  ModelCase c(*backend, *reference, DType::float32);
  const Shape shape{1, 100, 1, 16};
  const Pair query = c.normal(shape, 12.0), key = c.normal(shape, 12.0), value = c.normal(shape), output = c.output(shape);
  c.on_both([&](Backend& on, auto pick) {
    AttentionForward f;
    f.query = pick(query), f.key = pick(key), f.value = pick(value), f.output = pick(output);
    on.attention().forward(on.compute_stream(), f);  // scores of several hundred: any wrong base overflows
  });
  const std::vector<double> found = to_doubles(*backend, output.tested), expected = to_doubles(*reference, output.reference);
  for (size_t i = 0; i < found.size(); ++i) CHECK(std::fabs(found[i] - expected[i]) < 1e-3);
}

TEST_CASE("attention refuses heads beyond 256 elements by name") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  AttentionForward f;
  f.query = f.key = f.value = f.output =
      backend->allocate(Shape{1, 2, 1, 264}, DType::float32, MemoryCategory::workspace, "a tensor of large heads");
  try {
    backend->attention().forward(backend->compute_stream(), f);
    FAIL("heads of 264 elements were taken");
  } catch (const DeviceError& error) {
    const std::string message = error.what();
    CHECK(message.find("attention_forward") != std::string::npos);
    CHECK(message.find("264") != std::string::npos);
  }
}

TEST_CASE("attention of no queries leaves the gradients of keys at zero") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const auto make = [&](const Shape& shape) {
    return backend->allocate(shape, DType::float32, MemoryCategory::workspace, "a tensor of attention without queries");
  };
  AttentionBackward b;
  b.forward.query = b.forward.output = b.d_output = b.d_query = make({1, 0, 2, 8});
  b.forward.key = b.forward.value = make({1, 3, 2, 8}), b.forward.log_sum_exp = make({1, 2, 0});
  b.forward.causal = false;
  b.d_key = make({1, 3, 2, 8}), b.d_value = make({1, 3, 2, 8});
  backend->attention().forward(backend->compute_stream(), b.forward);
  backend->attention().backward(backend->compute_stream(), b);
  CHECK(to_doubles(*backend, b.d_key) == std::vector<double>(48, 0.0));
  CHECK(to_doubles(*backend, b.d_value) == std::vector<double>(48, 0.0));
}
