#include "support.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "dmuon/backend/device.h"
#include "dmuon/backend/device_clock.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "train/command_line.h"
#include "train/devices.h"

namespace dmuon::bench {
namespace {

double seconds_now(bool thread_time) {
  timespec now{};
  clock_gettime(thread_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Stopwatch {
 public:
  Stopwatch(const Arguments& arguments, Backend* backend) : thread_time_(arguments.threads == 1) {
    if (backend != nullptr) device_ = dynamic_cast<DeviceClock*>(&backend->compute_stream());
  }

  double time(int repetitions, const std::function<void()>& function) const {
    if (device_ != nullptr) {
      const Event begin = device_->record_time();
      for (int i = 0; i < repetitions; ++i) function();
      const Event end = device_->record_time();
      end.wait();
      return device_->seconds_between(begin, end) / repetitions;
    }
    const double start = seconds_now(thread_time_);
    for (int i = 0; i < repetitions; ++i) function();
    return (seconds_now(thread_time_) - start) / repetitions;
  }

  // Warms up (twice: a graph is recorded in the second call) and finds how many calls last about 20 ms.
  int repetitions(const std::function<void()>& function) const {
    function();
    if (device_ != nullptr) function();
    const double once = time(1, function);
    return std::clamp(static_cast<int>(std::lround(0.02 / std::max(once, 1e-7))), 1, 10000);
  }

 private:
  bool thread_time_;
  DeviceClock* device_ = nullptr;
};

}  // namespace

double number_option(const std::string& name, const std::string& value, double least, double most) {
  std::string written = value;
  if (const std::string wrong = number_between(least, most)(written); !wrong.empty()) throw ConfigError(text("--", name, ": ", wrong));
  return *finite_number(written);
}

double network_card_bytes() {
  double bytes = 0.0;
  std::ifstream("/sys/class/net/eth0/statistics/tx_bytes") >> bytes;
  return bytes;
}

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double fraction) { return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5)]; };
  return {at(0.5), at(0.25), at(0.75)};
}

Comparison compare(const Arguments& arguments, const std::function<void()>& a, const std::function<void()>& b, Backend* backend) {
  const Stopwatch watch(arguments, backend);
  const int a_repetitions = watch.repetitions(a), b_repetitions = watch.repetitions(b);
  std::vector<double> ratios, a_times, b_times;
  for (int i = 0; i < arguments.pairs; ++i) {
    a_times.push_back(watch.time(a_repetitions, a));
    b_times.push_back(watch.time(b_repetitions, b));
    ratios.push_back(a_times.back() / b_times.back());
  }
  return {spread_of(ratios), spread_of(a_times).median, spread_of(b_times).median};
}

Spread measure(const Arguments& arguments, const std::function<void()>& a, Backend* backend) {
  const Stopwatch watch(arguments, backend);
  const int repetitions = watch.repetitions(a);
  std::vector<double> times;
  for (int i = 0; i < arguments.pairs; ++i) times.push_back(watch.time(repetitions, a));
  return spread_of(times);
}

double product_flops_per_second(Backend& backend, int64_t m, int64_t n, int64_t k, DType dtype) {
  Multiply product;
  product.a = random_tensor(backend, {m, k}, 1.0, dtype), product.b = random_tensor(backend, {n, k}, 1.0, dtype);
  product.c = random_tensor(backend, {m, n}, 1.0, dtype), product.transpose_b = true;
  const auto once = [&] { backend.matrix().multiply(backend.compute_stream(), product); };
  Arguments elapsed;
  elapsed.threads = 0;  // elapsed time, however many threads
  const Stopwatch watch(elapsed, &backend);
  // One product of a device is too short for its clock.
  const bool device = dynamic_cast<DeviceClock*>(&backend.compute_stream()) != nullptr;
  const int repetitions = device ? std::min(watch.repetitions(once), 100) : 1;
  double best = 1e30;
  for (int i = 0; i < 4; ++i) best = std::min(best, watch.time(repetitions, once));
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / best;
}

std::string device_name(const Arguments& arguments) {
  const auto given = arguments.own.find("device");
  return given != arguments.own.end() ? given->second : "cpu";
}

std::unique_ptr<Backend> make_backend(const Arguments& arguments) {
  BackendOptions options;
  options.threads = arguments.threads;
  return dmuon::make_backend(device_name(arguments), options);
}

Tensor random_tensor(Backend& backend, const Shape& shape, double deviation, DType dtype) {
  static uint64_t next = 0;
  const Random random(++next, RandomStream::test);
  const Tensor tensor = backend.allocate(shape, DType::float32, MemoryCategory::activations, "benchmark operand");
  // A short sequence repeated (on the host with a drift): as good as random for timing, and fast to make. Its length divides none of a
  // matrix.
  constexpr int64_t period = 65521;
  const bool device = device_of(backend) != nullptr;
  const int64_t elements = shape.elements(), made = device ? std::min(elements, period) : elements;
  std::vector<float> values(static_cast<size_t>(made));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i < static_cast<size_t>(period) ? static_cast<float>(deviation * random.normal(i)) : values[i - period] * 0.99f;
  Stream& stream = backend.compute_stream();
  if (made == elements) {
    backend.copy_from_host(stream, values.data(), tensor);
  } else {
    backend.copy_from_host(stream, values.data(), tensor.flat(0, made));
    for (int64_t done = made; done < elements; done += std::min(done, elements - done))
      backend.copy(stream, tensor.flat(0, std::min(done, elements - done)), tensor.flat(done, std::min(done, elements - done)));
  }
  if (dtype == DType::float32) return tensor;
  const Tensor narrow = backend.allocate(shape, dtype, MemoryCategory::activations, "benchmark operand");
  backend.copy(backend.compute_stream(), tensor, narrow);
  return narrow;
}

Triad::Triad(int threads, int64_t elements)
    : threads_(threads),
      elements_(elements),
      allocator_(make_host_allocator()),
      storage_(allocator_->allocate(3 * elements * static_cast<int64_t>(sizeof(float)), MemoryCategory::workspace, "triad")),
      a_(static_cast<float*>(storage_->data())),
      b_(a_ + elements),
      c_(b_ + elements) {
#pragma omp parallel for schedule(static) num_threads(threads_)
  for (int64_t i = 0; i < elements; ++i) a_[i] = b_[i] = static_cast<float>(i % 1000), c_[i] = 0.0f;
}

void Triad::run() {
  float* __restrict c = c_;
  const float* __restrict a = a_, * __restrict b = b_;
  const int64_t elements = elements_;
#pragma omp parallel for simd schedule(static) num_threads(threads_)
  for (int64_t i = 0; i < elements; ++i) c[i] = a[i] + 0.5f * b[i];
}

double Triad::read() {
  const float* a = a_;
  float total = 0;
#pragma omp parallel for simd schedule(static) num_threads(threads_) reduction(+ : total)
  for (int64_t i = 0; i < elements_; ++i) total += a[i];
  return static_cast<double>(total);
}

Json machine_of(const Arguments& arguments) {
  const BackendInformation information = make_backend(arguments)->information();
  double load = 0;
  getloadavg(&load, 1);
  Json machine = Json::object();
  machine.set("processor", information.device);
  machine.set("instruction_set", information.instruction_set);
  machine.set("gemm", information.gemm);
  machine.set("threads", information.threads);
  machine.set("load_average", load);
  return machine;
}

}  // namespace dmuon::bench
