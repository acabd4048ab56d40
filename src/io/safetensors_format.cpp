#include "io/safetensors_format.h"

#include <algorithm>

#include "dmuon/core/text.h"
#include "dmuon/io/safetensors.h"

namespace dmuon {
namespace {

constexpr SafetensorsType types[] = {
    {"F32", 32, DType::float32},  {"F64", 64, DType::float64},      {"BF16", 16, DType::bfloat16},    {"F16", 16, DType::float16},
    {"I64", 64, DType::int64},    {"I32", 32, DType::int32},        {"I16", 16, DType::int16},        {"I8", 8, DType::int8},
    {"U8", 8, DType::uint8},      {"BOOL", 8, std::nullopt},        {"U16", 16, std::nullopt},        {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"C64", 64, std::nullopt},        {"F8_E5M2", 8, std::nullopt},     {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt}, {"F8_E5M2FNUZ", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

const SafetensorsType* find_safetensors_type(std::string_view name) {
  for (const SafetensorsType& type : types)
    if (type.name == name) return &type;
  return nullptr;
}

const SafetensorsType& safetensors_type(DType dtype) {
  return *std::find_if(std::begin(types), std::end(types), [&](const SafetensorsType& type) { return type.dtype == dtype; });
}

std::string_view safetensors_dtype(DType dtype) { return safetensors_type(dtype).name; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  const SafetensorsType* type = find_safetensors_type(name);
  return type != nullptr ? type->dtype : std::nullopt;
}

std::string tensor_name_problem(std::string_view name, int64_t maximum_bytes) {
  if (name.empty()) return "is empty";
  if (static_cast<int64_t>(name.size()) > maximum_bytes) return text("is ", name.size(), " bytes long (at most ", maximum_bytes, ")");
  if (std::any_of(name.begin(), name.end(), is_control)) return "contains a control character";
  if (name.front() == '/') return "begins with \"/\"";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("/\\", begin), name.size());
    if (name.substr(begin, end - begin) == "..") return "contains \"..\" as a path component";
    begin = end + 1;
  }
  return {};
}

std::string printable_name(std::string_view name) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : name.substr(0, 120)) {
    if (is_control(c))
      ((out += "\\x") += digits[static_cast<unsigned char>(c) >> 4]) += digits[c & 15];
    else
      out += c;
  }
  return name.size() > 120 ? out + "..." : out;
}

}  // namespace dmuon
