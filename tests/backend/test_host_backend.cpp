#include "backend/host_backend.h"

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "dmuon/core/error.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;
using Catch::Matchers::Contains;

namespace {

std::unique_ptr<Backend> make_backend(HostMode mode, int threads = 1, uint64_t seed = 1) {
  BackendOptions options;
  options.mode = mode;
  options.threads = threads;
  options.deferred_seed = seed;
  return kernel_suite::open_reference(options);
}

Tensor make(Backend& backend, const Shape& shape, DType dtype, const std::vector<double>& values) {
  Tensor tensor = backend.allocate(shape, dtype, MemoryCategory::workspace, "test tensor");
  from_doubles(backend, values, tensor);
  return tensor;
}

std::vector<double> counting(int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
  return values;
}

constexpr HostMode computing_modes[] = {HostMode::normal, HostMode::guarded, HostMode::deferred};

}  // namespace

TEST_CASE("values survive the way to the device and back in every dtype and mode") {
  for (HostMode mode : computing_modes) {
    auto backend = make_backend(mode);
    const std::vector<double> values = {0, 1, 2, 100, 127};
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int64, DType::int32, DType::int16,
                        DType::int8, DType::uint8}) {
      CAPTURE(name_of(dtype));
      CHECK(to_doubles(*backend, make(*backend, {5}, dtype, values)) == values);
    }
    CHECK(to_doubles(*backend, make(*backend, {2}, DType::int64, {-5, 0x1p53})) == std::vector<double>{-5, 0x1p53});
    CHECK_THROWS_AS(make(*backend, {4}, DType::float32, values), ShapeError);
    CHECK(to_doubles(*backend, make(*backend, {0, 3}, DType::float32, {})).empty());
  }
}

TEST_CASE("copies convert between floating dtypes and refuse the rest") {
  for (HostMode mode : computing_modes) {
    auto backend = make_backend(mode);
    const Tensor source = make(*backend, {2, 2}, DType::float32, {1.0, -2.5, NAN, 1e30});
    const Tensor half = make(*backend, {4}, DType::float16, {9, 9, 9, 9});
    backend->copy(backend->compute_stream(), source, half);
    const std::vector<double> values = to_doubles(*backend, half);
    CHECK(values[0] == 1.0);
    CHECK(values[1] == -2.5);
    CHECK(std::isnan(values[2]));
    CHECK(values[3] == std::numeric_limits<double>::infinity());
    const Tensor integers = make(*backend, {4}, DType::int32, {1, 2, 3, 4});
    CHECK_THROWS_WITH(backend->copy(backend->compute_stream(), source, integers), Contains("float32[2, 2]") && Contains("int32[4]"));
    CHECK_THROWS_AS(backend->copy(backend->compute_stream(), source, half.flat(0, 3)), ShapeError);
    const Tensor more = make(*backend, {4}, DType::int32, {0, 0, 0, 0});
    backend->copy(backend->compute_stream(), integers, more);
    CHECK(to_doubles(*backend, more) == std::vector<double>{1, 2, 3, 4});
    backend->zero(backend->compute_stream(), more.flat(1, 2));
    CHECK(to_doubles(*backend, more) == std::vector<double>{1, 0, 0, 4});
  }
}

TEST_CASE("threaded copies and zeros touch every element once") {
  auto backend = make_backend(HostMode::normal, 3);
  const int64_t count = (int64_t{1} << 18) + 12345;
  const Tensor source = make(*backend, {count}, DType::float32, counting(count));
  const Tensor narrow = backend->allocate({count}, DType::bfloat16, MemoryCategory::workspace, "narrow");
  backend->copy(backend->compute_stream(), source, narrow);
  CHECK(to_doubles(*backend, narrow) == counting(count));
  backend->zero(backend->compute_stream(), source.flat(1, count - 2));
  std::vector<double> expected(static_cast<size_t>(count), 0.0);
  expected.front() = counting(count).front();
  expected.back() = counting(count).back();
  CHECK(to_doubles(*backend, source) == expected);
}

TEST_CASE("the source of copy_from_host may change at once, on every kind of stream") {
  for (HostMode mode : computing_modes) {
    auto backend = make_backend(mode);
    auto communication = backend->make_communication_stream("test");
    const Tensor tensor = make(*backend, {3}, DType::float32, {0, 0, 0});
    backend->compute_stream().synchronize();
    std::vector<float> values = {1, 2, 3};
    backend->copy_from_host(*communication, values.data(), tensor);
    values = {7, 7, 7};
    std::vector<float> back(3);
    backend->copy_to_host(*communication, tensor, back.data());
    CHECK(back == std::vector<float>{1, 2, 3});
  }
}

TEST_CASE("an error on a stream reaches copy_to_host") {
  auto backend = make_backend(HostMode::deferred);
  const Tensor tensor = make(*backend, {1}, DType::float32, {0});
  dynamic_cast<HostBackend&>(*backend).launch(backend->compute_stream(), "bad", 0, {tensor}, [] { throw NumericalError("bad kernel"); });
  CHECK_THROWS_WITH(to_doubles(*backend, tensor), "bad kernel");
}

TEST_CASE("costs count calls and FLOPs; profiling adds time") {
  auto backend = make_backend(HostMode::normal);
  auto& host = dynamic_cast<HostBackend&>(*backend);
  host.reset_costs();
  for (int i = 0; i < 3; ++i) host.launch(host.compute_stream(), "kernel", 10, {}, [] {});
  CHECK(host.costs().at("kernel").calls == 3);
  CHECK(host.costs().at("kernel").flops == 30);
  CHECK(host.costs().at("kernel").seconds == 0);
  host.profile(true);
  host.launch(host.compute_stream(), "kernel", 10, {}, [] {});
  CHECK(host.costs().at("kernel").seconds > 0);
  host.reset_costs();
  CHECK(host.costs().empty());
}

TEST_CASE("test doubles hand out memory that holds NaN") {
  for (HostMode mode : {HostMode::guarded, HostMode::deferred}) {
    auto backend = make_backend(mode);
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
      for (double value : to_doubles(*backend, backend->allocate({33}, dtype, MemoryCategory::workspace, "fresh")))
        CHECK(std::isnan(value));
  }
}

TEST_CASE("the deferred backend catches a missing wait between compute and communication") {
  const auto send = [](uint64_t seed, bool with_wait) {
    auto backend = make_backend(HostMode::deferred, 1, seed);
    auto communication = backend->make_communication_stream("test");
    const Tensor gradient = make(*backend, {2}, DType::float32, {1, 2});
    const Tensor sent = make(*backend, {2}, DType::float32, {0, 0});
    if (with_wait) communication->wait(backend->compute_stream().record());
    backend->copy(*communication, gradient, sent);
    std::vector<float> values(2);
    backend->copy_to_host(*communication, sent, values.data());
    return values == std::vector<float>{1, 2};
  };
  int wrong = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    CHECK(send(seed, true));
    wrong += send(seed, false) ? 0 : 1;
  }
  CHECK(wrong > 0);
}

TEST_CASE("an allocation beyond 63 bits is refused by name") {
  auto backend = make_backend(HostMode::shape_only);
  const Shape huge{int64_t{1} << 31, int64_t{1} << 31};
  CHECK_THROWS_WITH(backend->allocate(huge, DType::float32, MemoryCategory::parameters, "huge.weight"), Contains("huge.weight"));
  CHECK_THROWS_AS(backend->allocate(huge, DType::float32, MemoryCategory::parameters, "huge.weight"), ShapeError);
}
