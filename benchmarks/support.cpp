#include "support.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon::bench {
namespace {

double seconds_now(bool thread_time) {
  timespec now{};
  clock_gettime(thread_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double time_of(bool thread_time, int repetitions, const std::function<void()>& function) {
  const double start = seconds_now(thread_time);
  for (int i = 0; i < repetitions; ++i) function();
  return (seconds_now(thread_time) - start) / repetitions;
}

// Warms up and finds how many calls last about 20 ms.
int repetitions_of(bool thread_time, const std::function<void()>& function) {
  function();
  const double once = time_of(thread_time, 1, function);
  return std::clamp(static_cast<int>(std::lround(0.02 / std::max(once, 1e-7))), 1, 10000);
}

}  // namespace

double number_option(const std::string& name, const std::string& value, double least, double most) {
  try {
    size_t used = 0;
    const double number = std::stod(value, &used);
    if (used == value.size() && number >= least && number <= most) return number;
  } catch (const std::exception&) {
  }
  throw ConfigError(text("--", name, ": \"", value, "\" is no number from ", least, " to ", most));
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

Comparison compare(const Arguments& arguments, const std::function<void()>& a, const std::function<void()>& b) {
  const bool thread_time = arguments.threads == 1;
  const int a_repetitions = repetitions_of(thread_time, a), b_repetitions = repetitions_of(thread_time, b);
  std::vector<double> ratios, a_times, b_times;
  for (int i = 0; i < arguments.pairs; ++i) {
    a_times.push_back(time_of(thread_time, a_repetitions, a));
    b_times.push_back(time_of(thread_time, b_repetitions, b));
    ratios.push_back(a_times.back() / b_times.back());
  }
  return {spread_of(ratios), spread_of(a_times).median, spread_of(b_times).median};
}

Spread measure(const Arguments& arguments, const std::function<void()>& a) {
  const bool thread_time = arguments.threads == 1;
  const int repetitions = repetitions_of(thread_time, a);
  std::vector<double> times;
  for (int i = 0; i < arguments.pairs; ++i) times.push_back(time_of(thread_time, repetitions, a));
  return spread_of(times);
}

std::unique_ptr<Backend> make_backend(const Arguments& arguments) {
  BackendOptions options;
  options.threads = arguments.threads;
  return make_cpu_backend(options);
}

Tensor random_tensor(Backend& backend, const Shape& shape, double deviation) {
  static uint64_t next = 0;
  const Random random(++next, RandomStream::test);
  const Tensor tensor = backend.allocate(shape, DType::float32, MemoryCategory::activations, "benchmark operand");
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  // A short sequence repeated with a drift: as good as random for timing, and fast to make.
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i < 65521 ? static_cast<float>(deviation * random.normal(i)) : values[i - 65521] * 0.99f;
  backend.copy_from_host(backend.compute_stream(), values.data(), tensor);
  return tensor;
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
