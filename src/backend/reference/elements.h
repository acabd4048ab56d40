// What the reference kernels share: picking the element type, column sums that honour `accumulate`, and dropout.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "backend/convert.h"
#include "dmuon/backend/kernels.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon::reference {

// A bfloat16 element as the model's kernels use it: widened by every read, rounded once by every write.
struct StoredBfloat16 {
  uint16_t bits = 0;
  StoredBfloat16() = default;
  explicit StoredBfloat16(double value) { convert_elements(&value, DType::float64, &bits, DType::bfloat16, 1); }
  operator double() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// What kernels on elements of type T keep in more than that: statistics, losses and the gradients of parameters.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, StoredBfloat16>, float, T>;

}  // namespace dmuon::reference

namespace dmuon {
template <>
struct DTypeOf<reference::StoredBfloat16> {
  static constexpr DType value = DType::bfloat16;
};
}  // namespace dmuon

namespace dmuon::reference {

// Calls body(T{}) with the element type T of `tensor`: float or double.
template <class Body>
void with_type(const Tensor& tensor, const Body& body) {
  switch (tensor.dtype()) {
    case DType::float32:
      return body(float{});
    case DType::float64:
      return body(double{});
    default:
      throw ShapeError(
          text("the reference backend computes in float32 or float64, the model's kernels in bfloat16 too, not ", tensor.to_string()));
  }
}

// The same for the kernels of the model, which compute in bfloat16 too.
template <class Body>
void with_model_type(const Tensor& tensor, const Body& body) {
  return tensor.dtype() == DType::bfloat16 ? body(StoredBfloat16{}) : with_type(tensor, body);
}

// The same for any floating type.
template <class Body>
void with_floating_type(const Tensor& tensor, const Body& body) {
  switch (tensor.dtype()) {
    case DType::bfloat16:
      return body(bfloat16{});
    case DType::float16:
      return body(float16{});
    default:
      return with_type(tensor, body);
  }
}

inline double widen(float value) { return value; }
inline double widen(double value) { return value; }
inline double widen(bfloat16 value) { return static_cast<float>(value); }
inline double widen(float16 value) { return static_cast<float>(value); }

// Pointer to an optional tensor's elements: null when it is undefined.
template <class T>
T* optional_data(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

// Adds sums into `out` when accumulating, else overwrites it. An undefined `out` is skipped.
template <class T>
void store_sums(const std::vector<double>& sums, const Tensor& out, bool accumulate) {
  if (!out.defined()) return;
  T* to = out.data<T>();
  for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>((accumulate ? to[i] : 0.0) + sums[i]);
}

// The factor of every element under a dropout mask: 0 when dropped, 1 / (1 - probability) when kept.
class DropoutFactor {
 public:
  // `elements`: of the masked tensor, all sequences of the batch together.
  DropoutFactor(const DropoutMask& mask, int64_t elements)
      : mask_(mask), random_(mask.seed, RandomStream::dropout), per_sequence_(mask.sequences > 0 ? elements / mask.sequences : 1) {}

  // Of element `index`, counted over the whole tensor.
  double operator()(int64_t index) const { return at(index / per_sequence_, index % per_sequence_); }

  // Of element `element` of the batch's sequence `sequence`.
  double at(int64_t sequence, int64_t element) const {
    if (mask_.probability == 0.0) return 1.0;
    const double draw = random_.uniform(static_cast<uint64_t>(mask_.first_sequence + sequence), static_cast<uint64_t>(element));
    return draw >= mask_.probability ? 1.0 / (1.0 - mask_.probability) : 0.0;
  }

 private:
  DropoutMask mask_;
  Random random_;
  int64_t per_sequence_;
};

}  // namespace dmuon::reference
