// What the tests of Newton-Schulz and of the update rules share: backends, tensors from doubles, fixtures.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/random.h"
#include "support/paths.h"
#include "support/test_device.h"

namespace dmuon::test {

inline std::unique_ptr<Backend> reference_backend(const BackendOptions& options = {}) {
  return open_backend_plugin(dmuon::testing::reference_plugin(), options);
}

using dmuon::testing::make_test_backend;
using dmuon::testing::test_device_is_cuda;

inline Json fixture(const std::string& file) {
  const Path path = Path(dmuon::testing::test_data()) / file;
  return parse_json(read_file(path), path.string());
}

// Nested arrays of numbers, flattened row-major.
inline void append_numbers(const Json& value, std::vector<double>& out) {
  if (value.is_number()) {
    out.push_back(value.as_number());
    return;
  }
  for (const Json& each : value.as_array()) append_numbers(each, out);
}
inline std::vector<double> numbers(const Json& value) {
  std::vector<double> out;
  append_numbers(value, out);
  return out;
}

inline Tensor tensor_of(Backend& backend, const std::vector<double>& values, const Shape& shape, DType dtype) {
  Tensor tensor = backend.allocate(shape, dtype, MemoryCategory::workspace, "test");
  from_doubles(backend, values, tensor);
  return tensor;
}

// Standard normal, a function of seed and index.
inline std::vector<double> normal_values(uint64_t seed, int64_t count) {
  const Random random(seed, RandomStream::test);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.normal(static_cast<uint64_t>(i)));
  return values;
}

inline double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}
// ||a - b|| / ||b||
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(difference) / norm_of(b);
}
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0.0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) largest = std::fmax(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace dmuon::test
