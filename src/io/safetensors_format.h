// What reader and writer of the safetensors format share: its element types and the names it may carry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dmuon/core/dtype.h"

namespace dmuon {

struct SafetensorsType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

// Null for an unknown spelling (they are upper case).
const SafetensorsType* find_safetensors_type(std::string_view name);
const SafetensorsType& safetensors_type(DType dtype);

// Empty if `name` may be a tensor's name, otherwise what is wrong with it.
std::string tensor_name_problem(std::string_view name, int64_t maximum_bytes);
// The name for a message: control characters escaped, long names shortened.
std::string printable_name(std::string_view name);

}  // namespace dmuon
