// Tensors with random or given content on a backend, and their content as float bits, for the tests of the CPU backend.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/instruction_set.h"
#include "dmuon/backend/backend.h"
#include "dmuon/core/random.h"
#include "support/catch.h"

namespace cpu_test {

inline std::unique_ptr<dmuon::Backend> make(int threads, const std::string& instruction_set = "auto") {
  dmuon::BackendOptions options;
  options.threads = threads;
  options.instruction_set = instruction_set;
  return dmuon::make_cpu_backend(options);
}

inline std::vector<double> random_values(int64_t count, uint64_t seed) {
  const dmuon::Random random(seed, dmuon::RandomStream::test);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.normal(i));
  return values;
}

// Small integers: products and sums of them are exact in float32.
inline std::vector<double> random_integers(int64_t count, uint64_t seed) {
  const dmuon::Random random(seed, dmuon::RandomStream::test);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(random.below(9, i)) - 4.0;
  return values;
}

inline dmuon::Tensor tensor(dmuon::Backend& backend, const dmuon::Shape& shape, const std::vector<double>& values,
                            dmuon::DType dtype = dmuon::DType::float32) {
  const dmuon::Tensor result = backend.allocate(shape, dtype, dmuon::MemoryCategory::activations, "test tensor");
  dmuon::from_doubles(backend, values, result);
  return result;
}
inline dmuon::Tensor unset(dmuon::Backend& backend, const dmuon::Shape& shape, dmuon::DType dtype = dmuon::DType::float32) {
  return tensor(backend, shape, std::vector<double>(static_cast<size_t>(shape.elements()), std::nan("")), dtype);
}

inline std::vector<uint32_t> bits(dmuon::Backend& backend, const dmuon::Tensor& tensor) {
  std::vector<uint32_t> words(static_cast<size_t>(tensor.bytes() / 4));
  backend.copy_to_host(backend.compute_stream(), tensor, words.data());
  return words;
}

}  // namespace cpu_test
