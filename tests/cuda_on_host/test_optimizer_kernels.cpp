// The optimizer step on the device: passes, reductions and one-bit votes, run on the host, against the reference and the CPU
// backend.
#include <cmath>
#include <limits>

#include "dmuon/core/random.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::unique_ptr<Backend> open_device() { return open_backend_plugin(DMUON_CUDA_ON_HOST); }

Tensor tensor_of(Backend& backend, const Shape& shape, DType dtype, const std::vector<double>& values) {
  const Tensor tensor = backend.allocate(shape, dtype, MemoryCategory::workspace, "test");
  from_doubles(backend, values, tensor);
  return tensor;
}

std::vector<double> normals(int64_t count, uint64_t seed, double deviation = 1.0) {
  const Random random(seed, RandomStream::test);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(deviation * random.normal(i));
  return values;
}

Tensor sums_of(Backend& backend, const Tensor& in, int64_t chunk) {
  const Tensor sums =
      backend.allocate(Shape{(in.elements() + chunk - 1) / chunk}, DType::float64, MemoryCategory::workspace, "sums of squares");
  backend.optimizer().square_sums(backend.compute_stream(), {in, sums, chunk});
  return sums;
}

// The result of normalize() on `values`, with sums over chunks of 64 elements.
std::vector<double> normalized(Backend& backend, const std::vector<double>& values, DType dtype, int mode = 1, double epsilon = 1e-15,
                               double safety = 1.0) {
  const auto count = static_cast<int64_t>(values.size());
  const Tensor in = tensor_of(backend, Shape{1, count}, DType::float32, values);
  const Tensor out = tensor_of(backend, Shape{1, count}, dtype, std::vector<double>(values.size(), std::nan("")));
  Normalize arguments;
  arguments.in = in, arguments.square_sums = sums_of(backend, in, 64), arguments.out = out;
  arguments.epsilon_mode = mode, arguments.epsilon = epsilon, arguments.safety = safety;
  backend.optimizer().normalize(backend.compute_stream(), arguments);
  return to_doubles(backend, out);
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("the optimizer's passes and reductions agree with the reference") {
  const auto device = open_device(), reference = kernel_suite::open_reference();
  kernel_suite::compare_optimizer_kernels(*device, *reference);
}

TEST_CASE("signs and votes agree with the reference bit for bit") {
  const auto device = open_device(), reference = kernel_suite::open_reference();
  kernel_suite::compare_sign_kernels(*device, *reference);
}

TEST_CASE("the passes round like those of the CPU") {
  const auto device = open_device(), cpu = make_cpu_backend();
  const int64_t count = 4099;
  std::vector<std::vector<double>> results;
  for (Backend* backend : {device.get(), cpu.get()}) {
    const auto tensor = [&](uint64_t seed) { return tensor_of(*backend, Shape{1, count}, DType::float32, normals(count, seed)); };
    const Tensor parameter = tensor(1), gradient = tensor(2), momentum = tensor(3), update = tensor(4);
    const Tensor hyper = tensor_of(*backend, Shape{2}, DType::float64, {0.95, 0.37});
    const Tensor apply_hyper = tensor_of(*backend, Shape{3}, DType::float64, {0.02, 0.1, 1.7});
    const Tensor published = backend->allocate(parameter.shape(), DType::bfloat16, MemoryCategory::workspace, "published");
    MuonMomentum pass;
    pass.gradient = gradient, pass.momentum_buffer = momentum, pass.update = update, pass.hyper = hyper;
    backend->optimizer().muon_momentum(backend->compute_stream(), pass);
    MuonApply apply;
    apply.parameter = parameter, apply.update = update, apply.hyper = apply_hyper, apply.published = published;
    backend->optimizer().muon_apply(backend->compute_stream(), apply);
    for (const Tensor& result : {parameter, momentum, update, published}) results.push_back(to_doubles(*backend, result));
  }
  for (size_t i = 0; i < results.size() / 2; ++i) CHECK(results[i] == results[results.size() / 2 + i]);
}

TEST_CASE("an update in float16 is applied like the same numbers in float32") {
  const auto device = open_device();
  for (const int64_t count : {1, 6, 1027, 5000}) {
    const Tensor half = tensor_of(*device, Shape{count}, DType::float16, normals(count, 5));
    const Tensor single = tensor_of(*device, Shape{count}, DType::float32, to_doubles(*device, half));
    const Tensor hyper = tensor_of(*device, Shape{3}, DType::float64, {0.02, 0.1, 1.7});
    const Tensor a = tensor_of(*device, Shape{count}, DType::float32, normals(count, 6));
    const Tensor b = tensor_of(*device, Shape{count}, DType::float32, normals(count, 6));
    device->optimizer().muon_apply(device->compute_stream(), {a, half, hyper});
    device->optimizer().muon_apply(device->compute_stream(), {b, single, hyper});
    CHECK(to_doubles(*device, a) == to_doubles(*device, b));
    CHECK(to_doubles(*device, a) != normals(count, 6));
  }
}

TEST_CASE("sums do not depend on where a tensor lies, nor on the pass that takes them") {
  const auto device = open_device();
  const int64_t count = 3001, chunk = 256;
  const Tensor block = tensor_of(*device, Shape{count + 8}, DType::float32, normals(count + 8, 7));
  const Tensor aligned = block.flat(0, count),
               moved = tensor_of(*device, Shape{count + 8}, DType::float32, normals(count + 8, 7)).flat(3, count);
  from_doubles(*device, to_doubles(*device, aligned), moved);
  const std::vector<double> sums = to_doubles(*device, sums_of(*device, aligned, chunk));
  CHECK(to_doubles(*device, sums_of(*device, moved, chunk)) == sums);

  const Tensor momentum = tensor_of(*device, Shape{count}, DType::float32, std::vector<double>(static_cast<size_t>(count), 0.0));
  const Tensor update = device->allocate(Shape{count}, DType::float32, MemoryCategory::workspace, "update");
  const Tensor of_pass = device->allocate(Shape{static_cast<int64_t>(sums.size())}, DType::float64, MemoryCategory::workspace, "sums");
  MuonMomentum pass;
  pass.sum_form = true, pass.nesterov = false;
  pass.gradient = moved, pass.momentum_buffer = momentum, pass.update = update, pass.square_sums = of_pass, pass.chunk = chunk;
  pass.hyper = tensor_of(*device, Shape{2}, DType::float64, {0.5, 1.0});
  device->optimizer().muon_momentum(device->compute_stream(), pass);
  CHECK(to_doubles(*device, of_pass) == sums);
}

TEST_CASE("a matrix is divided by its norm on the device") {
  const auto device = open_device();
  for (const int64_t count : {1, 63, 64, 1025, 20000}) {
    const std::vector<double> values = normals(count, 8, 3.0);
    const double norm = norm_of(values);
    for (const DType dtype : {DType::float16, DType::float32}) {
      const std::vector<double> found = normalized(*device, values, dtype);
      const double rounding = dtype == DType::float16 ? 0x1p-11 : 0x1p-22, smallest = dtype == DType::float16 ? 0x1p-25 : 0.0;
      size_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i)
        wrong += std::fabs(found[i] - values[i] / norm) <= 1.01 * rounding * std::fabs(values[i] / norm) + smallest ? 0 : 1;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("norms far outside the range of float32 and float16") {
  const auto device = open_device();
  const double largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::denorm_min();
  CHECK(normalized(*device, {largest, -largest, largest, largest}, DType::float16) == std::vector<double>{0.5, -0.5, 0.5, 0.5});
  CHECK(normalized(*device, {smallest, smallest, -smallest, smallest}, DType::float16, 0, 0.0) == std::vector<double>{0.5, 0.5, -0.5, 0.5});
  CHECK(normalized(*device, {3e-30, 4e-30}, DType::float32, 0, 0.0)[0] == Approx(0.6));
  // Below epsilon the matrix is not brought to norm 1.
  CHECK(normalized(*device, {3e-15, 4e-15}, DType::float32, 1, 1e-10)[0] == Approx(3e-5));
  CHECK(normalized(*device, {3.0, 4.0}, DType::float32, 0, 5.0)[0] == Approx(0.3));
  CHECK(normalized(*device, {3.0, 4.0}, DType::float32, 2, 2.5, 1.5)[1] == Approx(0.4));
}

TEST_CASE("zero matrices stay zero and what is not finite stays seen") {
  const auto device = open_device();
  for (const int mode : {0, 1, 2})
    CHECK(normalized(*device, std::vector<double>(77, 0.0), DType::float16, mode, 0.0) == std::vector<double>(77, 0.0));
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    std::vector<double> values = normals(77, 9);
    values[40] = bad;
    for (const double x : normalized(*device, values, DType::float16)) CHECK(std::isnan(x));
  }
}

TEST_CASE("more workers than one launch takes are voted on in groups") {
  const auto device = open_device(), reference = kernel_suite::open_reference();
  const int workers = 514, words = 5, any_words = 2;
  std::vector<std::vector<int64_t>> results;
  for (Backend* backend : {device.get(), reference.get()}) {
    VoteSigns vote;
    for (int worker = 0; worker < workers; ++worker) {
      const Random random(static_cast<uint64_t>(worker % 2), RandomStream::test);
      std::vector<int64_t> values(words);
      // Half against half, so that the tie-breaker decides; a header bit that one worker has.
      for (int w = 0; w < words; ++w) values[static_cast<size_t>(w)] = static_cast<int64_t>(random.bits(static_cast<uint64_t>(w)));
      for (int w = 0; w < any_words; ++w) values[static_cast<size_t>(w)] = worker == 300 ? 1 << 5 : 0;
      vote.inputs.push_back(backend->allocate(Shape{words}, DType::int64, MemoryCategory::workspace, "votes"));
      backend->copy_from_host(backend->compute_stream(), values.data(), vote.inputs.back());
    }
    vote.result = backend->allocate(Shape{words}, DType::int64, MemoryCategory::workspace, "result");
    vote.any_words = any_words, vote.tie_breaker = 301;
    backend->signs().vote(backend->compute_stream(), vote);
    std::vector<int64_t> result(words);
    backend->copy_to_host(backend->compute_stream(), vote.result, result.data());
    results.push_back(result);
  }
  CHECK(results[0] == results[1]);
}
