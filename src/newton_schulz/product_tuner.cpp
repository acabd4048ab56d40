// The forms of symmetric products on a device, compared and timed on random matrices.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/tuner.h"
#include "newton_schulz/schedule.h"

namespace dmuon {
namespace {

constexpr int turns = 5, most_repetitions = 10;
constexpr double turn_seconds = 1e-3;  // beyond which a turn needs no repetitions
// Of an element of the product in float16, relative to the largest: its own rounding, with room for that of sums in float32.
constexpr double allowed_error = 1.0 / 512;

// X X^T of an n x k matrix, X^T X of a k x n one, or R R.
struct Question {
  int64_t n, k;
  bool along_k, square;
  std::string name(int64_t count) const {
    return text("symmetric product ", square ? "R R" : along_k ? "X X^T" : "X^T X", " ", n, "x", k, " float16 count ", count);
  }
};

Tensor random_matrix(Backend& backend, const Question& q, int64_t which, DType dtype) {
  const Random random(static_cast<uint64_t>(which), RandomStream::test);
  const Shape shape = q.along_k || q.square ? Shape{q.n, q.k} : Shape{q.k, q.n};
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.k)));
  for (int64_t i = 0; i < shape[0]; ++i)
    for (int64_t j = 0; j < shape[1]; ++j) {
      // R is symmetric: (i, j) and (j, i) draw one number.
      const int64_t index = q.square ? std::max(i, j) * shape[1] + std::min(i, j) : i * shape[1] + j;
      values[static_cast<size_t>(i * shape[1] + j)] = scale * static_cast<float>(random.normal(static_cast<uint64_t>(index)));
    }
  const Tensor single = backend.allocate(shape, DType::float32, MemoryCategory::workspace, "tuning");
  backend.copy_from_host(backend.compute_stream(), values.data(), single);
  const Tensor stored = backend.allocate(shape, dtype, MemoryCategory::workspace, "tuning");
  backend.copy(backend.compute_stream(), single, stored);
  return stored;
}

BatchedProduct product_of(Backend& backend, const Question& q, int64_t count, DType dtype) {
  BatchedProduct product;
  product.symmetric = true;
  product.transpose_a = !q.along_k && !q.square, product.transpose_b = q.along_k && !q.square;
  for (int64_t i = 0; i < count; ++i) {
    product.a.push_back(random_matrix(backend, q, i, dtype));
    product.d.push_back(backend.allocate(Shape{q.n, q.n}, dtype, MemoryCategory::workspace, "tuning"));
  }
  product.b = product.a;
  return product;
}

// The full product of the first matrix in float32, of the operands as float16 holds them.
std::vector<double> reference_of(Backend& backend, const BatchedProduct& product) {
  const auto single = [&](const Shape& shape) { return backend.allocate(shape, DType::float32, MemoryCategory::workspace, "tuning"); };
  Multiply full;
  full.a = full.b = single(product.a[0].shape());
  backend.copy(backend.compute_stream(), product.a[0], full.a);
  full.c = single(product.d[0].shape());
  full.transpose_a = product.transpose_a, full.transpose_b = product.transpose_b;
  backend.matrix().multiply(backend.compute_stream(), full);
  return to_doubles(backend, full.c);
}

bool agrees(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::fabs(found[i] - expected[i]) <= allowed_error * largest)) return false;
  return true;
}

double seconds_of(Backend& backend, const BatchedProduct& product) {
  const auto seconds = [&](int repetitions) {
    backend.compute_stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repetitions; ++i) backend.matrix().batched_product(backend.compute_stream(), product);
    backend.compute_stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repetitions;
  };
  const int repetitions = static_cast<int>(std::clamp(turn_seconds / std::max(seconds(1), 1e-9), 1.0, double{most_repetitions}));
  std::vector<double> times;
  for (int turn = 0; turn < turns; ++turn) times.push_back(seconds(repetitions));
  std::nth_element(times.begin(), times.begin() + turns / 2, times.end());
  return times[turns / 2];
}

}  // namespace

void NewtonSchulzTuner::choose_symmetric_forms(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns,
                                               int64_t count) {
  DeviceUpdates* device = device_updates(backend_);
  if (!device || backend_.shape_only()) return;
  const NewtonSchulzSchedule schedule = resolve(specification, rows, columns);
  for (const Question& q : {Question{schedule.short_side, schedule.long_side, !schedule.tall, false},
                            Question{schedule.short_side, schedule.short_side, true, true}}) {
    const std::string name = q.name(count);
    BatchedProduct product = product_of(backend_, q, count, device->product_dtype());
    const std::vector<std::string> forms = device->symmetric_forms(product);
    if (forms.empty()) continue;
    if (cache_)
      if (const Json* known = cache_->find(name); known && known->is_string())
        if (std::find(forms.begin(), forms.end(), known->as_string()) != forms.end()) {
          device->use_symmetric_form(product, known->as_string());
          continue;
        }
    const std::vector<double> expected = reference_of(backend_, product);
    std::string best;
    double best_seconds = 0.0;
    for (const std::string& form : forms) {
      device->use_symmetric_form(product, form);
      backend_.matrix().batched_product(backend_.compute_stream(), product);
      ++measurements_;
      if (!agrees(to_doubles(backend_, product.d[0]), expected)) {
        log_warning(text(name, ": the form ", form, " is left out, its product is wrong on this device"));
        continue;
      }
      const double seconds = seconds_of(backend_, product);
      if (best.empty() || seconds < best_seconds) best = form, best_seconds = seconds;
    }
    if (best.empty()) throw DeviceError(text(name, ": no form of the kernel is right on this device; is it damaged?"));
    device->use_symmetric_form(product, best);
    if (cache_) cache_->set(name, best);
  }
}

}  // namespace dmuon
