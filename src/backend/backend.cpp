#include "dmuon/backend/backend.h"

#include <cmath>

#include "backend/convert.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

template <class T>
void widen_integers(const std::vector<char>& bytes, std::vector<double>& values) {
  const T* elements = reinterpret_cast<const T*>(bytes.data());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(elements[i]);
}

template <class T>
void narrow_integers(std::span<const double> values, std::vector<char>& bytes) {
  T* elements = reinterpret_cast<T*>(bytes.data());
  for (size_t i = 0; i < values.size(); ++i) elements[i] = static_cast<T>(std::llround(values[i]));
}

}  // namespace

Tensor Backend::allocate(const Shape& shape, DType dtype, MemoryCategory category, std::string_view label) {
  const auto bytes = checked_multiply(shape.elements(), size_of(dtype));
  if (!bytes) throw ShapeError(text("\"", label, "\": ", name_of(dtype), shape.to_string(), " exceeds 2^63 bytes"));
  return Tensor(allocator().allocate(*bytes, category, label), 0, shape, dtype);
}

std::vector<double> to_doubles(Backend& backend, const Tensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  backend.copy_to_host(backend.compute_stream(), tensor, bytes.data());
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  switch (tensor.dtype()) {
    case DType::int64:
      widen_integers<int64_t>(bytes, values);
      break;
    case DType::int32:
      widen_integers<int32_t>(bytes, values);
      break;
    case DType::int16:
      widen_integers<int16_t>(bytes, values);
      break;
    case DType::int8:
      widen_integers<int8_t>(bytes, values);
      break;
    case DType::uint8:
      widen_integers<uint8_t>(bytes, values);
      break;
    default:
      convert_elements(bytes.data(), tensor.dtype(), values.data(), DType::float64, tensor.elements());
  }
  return values;
}

void from_doubles(Backend& backend, std::span<const double> values, const Tensor& tensor) {
  if (static_cast<int64_t>(values.size()) != tensor.elements())
    throw ShapeError(text("from_doubles: ", values.size(), " values for ", tensor.to_string()));
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  switch (tensor.dtype()) {
    case DType::int64:
      narrow_integers<int64_t>(values, bytes);
      break;
    case DType::int32:
      narrow_integers<int32_t>(values, bytes);
      break;
    case DType::int16:
      narrow_integers<int16_t>(values, bytes);
      break;
    case DType::int8:
      narrow_integers<int8_t>(values, bytes);
      break;
    case DType::uint8:
      narrow_integers<uint8_t>(values, bytes);
      break;
    default:
      convert_elements(values.data(), DType::float64, bytes.data(), tensor.dtype(), tensor.elements());
  }
  backend.copy_from_host(backend.compute_stream(), bytes.data(), tensor);
}

}  // namespace dmuon
