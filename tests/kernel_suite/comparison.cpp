#include "kernel_suite/comparison.h"

#include <cmath>
#include <limits>

#include "dmuon/core/hash.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/paths.h"

namespace kernel_suite {

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values)
    if (std::isfinite(value)) sum += value * value;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// About normal, of deviation 1: the sum of four uniform numbers. Millions are drawn, and nothing depends on the tails.
double draw(uint64_t key, size_t i) {
  const uint64_t a = mix64(key + 2 * i), b = mix64(key + 2 * i + 1);
  const auto sum = static_cast<double>(a >> 32) + static_cast<double>(a & 0xffffffff) + static_cast<double>(b >> 32) +
                   static_cast<double>(b & 0xffffffff);
  return (sum * 0x1p-32 - 2.0) * 1.7320508075688772;
}

}  // namespace

void Comparison::start(const std::string& name) {
  case_ = text(name, narrow() ? text(" ", name_of(precision_.compute)) : "", precision_.unaligned ? " unaligned" : "");
  draws_ = hash_name(case_);
}

Tensor Comparison::allocate(Backend& backend, const Shape& shape, DType dtype) {
  if (!precision_.unaligned) return backend.allocate(shape, dtype, MemoryCategory::workspace, case_);
  const Shape longer{shape.elements() + 1};
  return backend.allocate(longer, dtype, MemoryCategory::workspace, case_).flat(1, shape.elements()).reshape(shape);
}

Twin Comparison::make(const Shape& shape, DType tested, DType reference, const std::vector<double>& values) {
  Twin twin{allocate(tested_, shape, tested), allocate(reference_, shape, reference)};
  from_doubles(tested_, values, twin.tested);
  from_doubles(reference_, size_of(tested) == 2 && is_floating(tested) ? to_doubles(tested_, twin.tested) : values, twin.reference);
  return twin;
}

std::vector<double> Comparison::normals(const Shape& shape, double deviation, double mean) {
  const Random random(++draws_, RandomStream::test);
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(mean + deviation * draw(random.key(), i));
  return values;
}

std::vector<double> Comparison::squares(const Shape& shape) {
  const Random random(++draws_, RandomStream::test);
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double root = draw(random.key(), i);
    values[i] = static_cast<float>(root * root);
  }
  return values;
}

Twin Comparison::normal(const Shape& shape, double deviation, double mean) {
  return make(shape, precision_.compute, DType::float64, normals(shape, deviation, mean));
}

Twin Comparison::positive(const Shape& shape) { return make(shape, precision_.compute, DType::float64, squares(shape)); }

Twin Comparison::wide_normal(const Shape& shape, double deviation, double mean) {
  return make(shape, DType::float32, DType::float64, normals(shape, deviation, mean));
}

Twin Comparison::wide_positive(const Shape& shape) { return make(shape, DType::float32, DType::float64, squares(shape)); }

Twin Comparison::values(const Shape& shape, const std::vector<double>& values) {
  return make(shape, precision_.compute, DType::float64, values);
}

Twin Comparison::integers(const Shape& shape, const std::vector<double>& values) { return make(shape, DType::int32, DType::int32, values); }

Twin Comparison::below(int64_t bound, const Shape& shape, int64_t masked_every) {
  const Random random(++draws_, RandomStream::test);
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(random.below(static_cast<uint64_t>(bound), i));
  for (size_t i = 0; masked_every > 0 && i < values.size(); i += static_cast<size_t>(masked_every)) values[i] = -1;
  return integers(shape, values);
}

Twin Comparison::doubles(const std::vector<double>& values) {
  return make(Shape{static_cast<int64_t>(values.size())}, DType::float64, DType::float64, values);
}

Twin Comparison::output(const Shape& shape) {
  return make(shape, precision_.compute, DType::float64, std::vector<double>(static_cast<size_t>(shape.elements()), nan));
}

Twin Comparison::wide_output(const Shape& shape) {
  return make(shape, DType::float32, DType::float64, std::vector<double>(static_cast<size_t>(shape.elements()), nan));
}

Twin Comparison::typed_output(const Shape& shape, DType dtype) {
  return make(shape, dtype, dtype, std::vector<double>(static_cast<size_t>(shape.elements()), is_floating(dtype) ? nan : -7));
}

uint64_t Comparison::bits_of(const Tensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  tested_.copy_to_host(tested_.compute_stream(), tensor, bytes.data());
  return hash_bytes(bytes.data(), tensor.bytes());
}

// The terms that cancel count for at most 1: inputs are of that size, so a larger margin would excuse anything.
bool Comparison::too_far(const std::vector<double>& found, const std::vector<double>& expected, const Tolerance& tolerance,
                         std::string& message) const {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected[i]) != std::isfinite(found[i])) {
      message = text("element ", i, " of ", expected.size(), ": expected ", expected[i], ", found ", found[i]);
      return true;
    }
    if (!std::isfinite(expected[i])) continue;
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  const double margin = std::fmin(tolerance.magnitude, 1.0) * std::sqrt(static_cast<double>(expected.size()));
  const double allowed = (precision_.compute == DType::float16 ? 1e-3 : 1e-2) * (std::sqrt(norm) + margin);
  message = text("norm of the difference ", std::sqrt(difference), ", allowed ", allowed);
  return std::sqrt(difference) > allowed;
}

void Comparison::check(const char* output, const Twin& twin, const Tolerance& tolerance) {
  const std::string name = text(case_, ": ", output);
  const std::vector<double> found = to_doubles(tested_, twin.tested);
  const std::vector<double> expected = to_doubles(reference_, twin.reference);
  const auto remember = [&] {
    const bool fresh = bits_.emplace(name, bits_of(twin.tested)).second;
    INFO("two cases share the name " << name);
    CHECK(fresh);
  };
  if (narrow()) {
    std::string message;
    const bool far = too_far(found, expected, tolerance, message);
    INFO(name << ": " << message);
    CHECK_FALSE(far);
    return remember();
  }
  const double size = root_mean_square(expected) + tolerance.magnitude;
  const double unit = tolerance.epsilon * (8 + 4 * std::sqrt(tolerance.reduction));
  size_t wrong = 0;
  std::string first;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double allowed = unit * (std::fabs(expected[i]) + size);
    const bool same = std::isfinite(expected[i])
                          ? std::fabs(found[i] - expected[i]) <= allowed
                          : std::isnan(expected[i]) == std::isnan(found[i]) && (std::isnan(expected[i]) || found[i] == expected[i]);
    if (same) continue;
    if (wrong++ == 0) {
      std::ostringstream message;
      message.precision(9);
      message << "element " << i << " of " << expected.size() << ": expected " << expected[i] << ", found " << found[i]
              << ", allowed error " << allowed;
      first = message.str();
    }
  }
  INFO(name << ": " << first);
  CHECK(wrong == 0);
  remember();
}

void Comparison::check_same_bits(const char* output, const Tensor& a, const Tensor& b) {
  INFO(case_ << ": " << output);
  CHECK(bits_of(a) == bits_of(b));
}

void Comparison::check_unchanged(const char* input, uint64_t bits_before, const Tensor& tensor) {
  INFO(case_ << ": " << input << " is an input and must stay as it was");
  CHECK(bits_of(tensor) == bits_before);
}

std::unique_ptr<Backend> open_reference(const BackendOptions& options) {
  return open_backend_plugin(dmuon::testing::reference_plugin(), options);
}

OutputBits compare_matrix_kernels(Backend& tested, Backend& reference) { return compare_matrix_kernels(tested, reference, {}); }
OutputBits compare_attention_kernels(Backend& tested, Backend& reference) { return compare_attention_kernels(tested, reference, {}); }
OutputBits compare_normalization_kernels(Backend& tested, Backend& reference) {
  return compare_normalization_kernels(tested, reference, {});
}
OutputBits compare_activation_kernels(Backend& tested, Backend& reference) { return compare_activation_kernels(tested, reference, {}); }
OutputBits compare_embedding_loss_kernels(Backend& tested, Backend& reference) {
  return compare_embedding_loss_kernels(tested, reference, {});
}

OutputBits compare_model_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  OutputBits all;
  all.merge(compare_matrix_kernels(tested, reference, precision));
  all.merge(compare_attention_kernels(tested, reference, precision));
  all.merge(compare_normalization_kernels(tested, reference, precision));
  all.merge(compare_activation_kernels(tested, reference, precision));
  all.merge(compare_embedding_loss_kernels(tested, reference, precision));
  return all;
}

OutputBits compare_all_kernels(Backend& tested, Backend& reference) {
  OutputBits all = compare_model_kernels(tested, reference, {});
  all.merge(compare_optimizer_kernels(tested, reference));
  all.merge(compare_sign_kernels(tested, reference));
  return all;
}

OutputBits thread_count_invariant(const OutputBits& bits) {
  static const std::vector<std::string> kernels = {
      "batched_product", "adamw",      "sgd",        "muon_momentum", "muon_apply",   "square_sums",     "sum",         "count_non_finite",
      "convert",         "pack_signs", "vote_signs", "count_signs",   "expand_signs", "threshold_signs", "apply_signs", "unpack_signs"};
  OutputBits invariant;
  for (const auto& [name, hash] : bits)
    for (const std::string& kernel : kernels)
      if (name.starts_with(kernel + ",")) invariant.emplace(name, hash);
  return invariant;
}

}  // namespace kernel_suite
