// The forms of symmetric products on a device, compared and timed on random matrices.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/device.h"
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
  SymmetricShape shape(int64_t count) const { return {n, k, along_k || square, along_k && !square, count}; }
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

// The full product of matrix i in float32, of the operands as float16 holds them.
std::vector<double> reference_of(Backend& backend, const BatchedProduct& product, size_t i) {
  const auto single = [&](const Shape& shape) { return backend.allocate(shape, DType::float32, MemoryCategory::workspace, "tuning"); };
  Multiply full;
  full.a = full.b = single(product.a[i].shape());
  backend.copy(backend.compute_stream(), product.a[i], full.a);
  full.c = single(product.d[i].shape());
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

// Median of several turns, in elapsed time: what is measured is short, and many of it are queued before each wait.
double seconds_of(Backend& backend, const std::function<void()>& work) {
  const auto seconds = [&](int repetitions) {
    backend.compute_stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repetitions; ++i) work();
    backend.compute_stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repetitions;
  };
  const int repetitions = static_cast<int>(std::clamp(turn_seconds / std::max(seconds(1), 1e-9), 1.0, double{most_repetitions}));
  std::vector<double> times;
  for (int turn = 0; turn < turns; ++turn) times.push_back(seconds(repetitions));
  std::nth_element(times.begin(), times.begin() + turns / 2, times.end());
  return times[turns / 2];
}

bool same_but_count(SymmetricShape a, const SymmetricShape& b) {
  a.count = b.count;
  return a == b;
}

// The fastest of the forms whose product of random matrices is right; "" where none is.
std::string fastest_form(Backend& backend, DeviceUpdates& device, const SymmetricShape& shape, const BatchedProduct& product,
                         const std::vector<std::string>& forms, const std::string& name, int64_t& measurements) {
  // The first and the last one of a batch: a kernel may be wrong about one of them only.
  const size_t last = product.d.size() - 1;
  const std::vector<double> expected[] = {reference_of(backend, product, 0), reference_of(backend, product, last)};
  std::string best;
  double best_seconds = 0.0;
  for (const std::string& form : forms) {
    device.use_symmetric_form(shape, form);
    ++measurements;
    const auto compute = [&] { backend.matrix().batched_product(backend.compute_stream(), product); };
    try {
      for (const Tensor& d : product.d) backend.zero(backend.compute_stream(), d);  // what the form before has left
      compute();
      if (!agrees(to_doubles(backend, product.d[0]), expected[0]) || !agrees(to_doubles(backend, product.d[last]), expected[1])) {
        log_warning(text(name, ": the form ", form, " is left out, its product is wrong on this device"));
        continue;
      }
    } catch (const DeviceError& error) {
      log_warning(text(name, ": the form ", form, " is left out: ", error.what()));
      continue;
    }
    const double seconds = seconds_of(backend, compute);
    if (best.empty() || seconds < best_seconds) best = form, best_seconds = seconds;
  }
  return best;
}

}  // namespace

std::vector<SymmetricChoice> NewtonSchulzTuner::choose_symmetric_forms(const NewtonSchulzSpecification& specification, int64_t rows,
                                                                       int64_t columns, int64_t count, bool changing_bits,
                                                                       std::span<const SymmetricChoice> given) {
  std::vector<SymmetricChoice> choices;
  DeviceUpdates* device = device_updates(backend_);
  if (!device || backend_.shape_only()) return choices;
  const NewtonSchulzSchedule schedule = resolve(specification, rows, columns);
  for (const Question& q : {Question{schedule.short_side, schedule.long_side, !schedule.tall, false},
                            Question{schedule.short_side, schedule.short_side, true, true}}) {
    const SymmetricShape shape = q.shape(count);
    const auto decided = std::find_if(given.begin(), given.end(), [&](const SymmetricChoice& choice) {
      return choice.changes_bits && same_but_count(choice.shape, shape);
    });
    if (decided != given.end()) {
      device->use_symmetric_form(shape, decided->form);
      choices.push_back(*decided);
      continue;
    }
    const std::vector<std::string> neutral = device->symmetric_forms(shape), forms = device->symmetric_forms(shape, changing_bits);
    if (forms.empty()) continue;
    const auto chosen = [&](const std::string& form) {
      device->use_symmetric_form(shape, form);
      choices.push_back({shape, form, std::find(neutral.begin(), neutral.end(), form) == neutral.end()});
    };
    // Another choice of candidates is another question.
    const std::string name = text(q.name(count), changing_bits ? " of all forms" : "");
    if (cache_)
      if (const Json* known = cache_->find(name); known && known->is_string())
        if (std::find(forms.begin(), forms.end(), known->as_string()) != forms.end()) {
          chosen(known->as_string());
          continue;
        }
    const std::string best =
        fastest_form(backend_, *device, shape, product_of(backend_, q, count, device->product_dtype()), forms, name, measurements_);
    if (best.empty()) throw DeviceError(text(name, ": no form of the product is right on this device; is it damaged?"));
    chosen(best);
    if (cache_) cache_->set(name, best);
  }
  return choices;
}

int64_t NewtonSchulzTuner::device_batch(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count,
                                        int64_t most, std::span<const SymmetricChoice> given) {
  DeviceUpdates* device = device_updates(backend_);
  if (!device || backend_.shape_only() || most <= 1) return most;
  const std::string name = text("batch of ", rows, "x", columns, " float16 count ", count, " at most ", most);
  if (cache_)
    if (const Json* known = cache_->find(name); known && known->is_integer() && known->as_integer() >= 1 && known->as_integer() <= most)
      return known->as_integer();
  int64_t best = most;
  double best_seconds = 0.0;
  // Small batches leave a device idle, so a few halvings show the trend.
  for (int64_t batch = most, tried = 0; batch >= 1 && tried < 4; batch /= 2, ++tried) {
    choose_symmetric_forms(specification, rows, columns, batch, false, given);
    ++measurements_;
    const Tensor matrix = backend_.allocate(Shape{rows, columns}, DType::float32, MemoryCategory::workspace, "tuning");
    backend_.zero(backend_.compute_stream(), matrix);
    const std::vector<Tensor> matrices(static_cast<size_t>(batch), matrix);
    DeviceNewtonSchulz newton_schulz(backend_, specification, rows, columns, batch);
    const Tensor sums = backend_.allocate(Shape{batch, newton_schulz.result_square_sums(0).elements()}, DType::float64,
                                          MemoryCategory::workspace, "tuning");
    backend_.zero(backend_.compute_stream(), sums);
    std::vector<Tensor> tensors = newton_schulz.tensors();
    tensors.insert(tensors.end(), {matrix, sums});
    const uint64_t key = hash_name(text("tuning ", name, " ", batch));
    const double seconds = seconds_of(backend_,
                                      [&] {
                                        device->replay(backend_.compute_stream(), key, tensors,
                                                       [&] { newton_schulz.queue(backend_.compute_stream(), matrices, sums); });
                                      }) *
                           static_cast<double>(divide_up(count, batch));
    if (best_seconds == 0.0 || seconds < best_seconds) best = batch, best_seconds = seconds;
  }
  if (cache_) cache_->set(name, best);
  return best;
}

}  // namespace dmuon
