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

// A copy of the fixture that a test may damage.
inline Path copy_of_fixture(const std::string& name, const Path& to) {
  std::filesystem::copy(huggingface_fixture(name), to, std::filesystem::copy_options::recursive);
  std::filesystem::remove(to / "expected.safetensors");
  return to;
}

}  // namespace dmuon::test
