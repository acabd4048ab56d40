// Models made from the fixtures of scripts/make_huggingface_fixtures.py.
#pragma once

#include <map>

#include "dmuon/core/file.h"
#include "dmuon/io/huggingface.h"
#include "nn/tiny_model.h"
#include "support/paths.h"

namespace dmuon::test {

inline Path huggingface_fixture(const std::string& name) {
  return Path(dmuon::testing::source_directory()) / "tests" / "huggingface" / "fixtures" / name;
}

inline std::vector<float> read_floats(const SafetensorsReader& file, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(file.at(name).shape.elements()));
  file.read(name, values.data(), static_cast<int64_t>(values.size()) * 4);
  return values;
}

// What transformers computed with: the tokens and targets of a fixture's expected.safetensors.
inline Batch fixture_batch(const SafetensorsReader& expected) {
  const Shape& shape = expected.at("tokens").shape;
  Batch batch{shape[0], shape[1], std::vector<int32_t>(static_cast<size_t>(shape.elements())), {}, 0};
  batch.targets = batch.tokens;
  expected.read("tokens", batch.tokens.data(), shape.elements() * 4);
  expected.read("targets", batch.targets.data(), shape.elements() * 4);
  return batch;
}

// The tensors of `group` ("gradient", "adamw", "muon"), cut into our parameters.
inline Values expected_values(const SafetensorsReader& expected, const HuggingFaceLayout& layout, const std::string& group) {
  Values result;
  for (const HuggingFaceTensor& tensor : layout.tensors) {
    if (expected.find(group + "/" + tensor.name) == nullptr) continue;
    const std::vector<float> values = read_floats(expected, group + "/" + tensor.name);
    const int64_t columns = static_cast<int64_t>(values.size()) / tensor.shape[tensor.transposed ? 1 : 0];
    const int64_t rows = static_cast<int64_t>(values.size()) / columns;
    int64_t first = 0;
    for (const HuggingFacePart& part : tensor.parts) {
      std::vector<double>& out = result[part.parameter];
      for (int64_t r = first; r < first + part.rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          out.push_back(values[static_cast<size_t>(tensor.transposed ? c * rows + r : r * columns + c)]);
      first += part.rows;
    }
  }
  return result;
}

// A copy of the fixture that a test may damage.
inline Path copy_of_fixture(const std::string& name, const Path& to) {
  std::filesystem::copy(huggingface_fixture(name), to, std::filesystem::copy_options::recursive);
  std::filesystem::remove(to / "expected.safetensors");
  return to;
}

}  // namespace dmuon::test
