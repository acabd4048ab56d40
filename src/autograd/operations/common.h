// What the operations share: checks that name the operation, and outputs with a slot.
#pragma once

#include "dmuon/autograd/operations.h"
#include "dmuon/core/text.h"

namespace dmuon {

template <class... Parts>
void require_shape(bool condition, const Parts&... message) {
  if (!condition) throw ShapeError(text(message...));
}

// Kernels trust dtypes: DeviceError naming the operation unless the backend computes in this one.
inline void require_computes(const ExecutionContext& context, std::string_view operation, const Variable& x) {
  const DType dtype = x.value().dtype();
  if (!context.backend.computes_in(dtype))
    throw DeviceError(text(operation, ": the backend \"", context.backend.name(), "\" does not compute in ", name_of(dtype),
                           ", the dtype of ", x.to_string(), "; convert it to float32"));
}

// A vector parameter of `size` elements with x's dtype, or undefined.
inline void require_vector(std::string_view operation, std::string_view what, const Variable& vector, int64_t size, const Tensor& x) {
  if (!vector.defined()) return;
  require_shape(vector.value().elements() == size && vector.value().dtype() == x.dtype(), operation, ": the ", what, " must be ",
                name_of(x.dtype()), "[", size, "], found ", vector.to_string());
}

inline void require_indices(std::string_view operation, std::string_view what, const Tensor& indices) {
  require_shape(indices.defined() && indices.dtype() == DType::int32, operation, ": ", what, " must be int32, found ",
                indices.defined() ? indices.to_string() : "undefined");
}

inline Tensor value_or_undefined(const Variable& variable) { return variable.defined() ? variable.value() : Tensor(); }

// [N, C]
inline Tensor as_matrix(const Tensor& tensor) {
  return tensor.rank() == 2 ? tensor : tensor.reshape(Shape{tensor.rows(), tensor.size(-1)});
}

// `shape` with its last size replaced.
inline Shape with_last(const Shape& shape, int64_t last) {
  std::array<int64_t, Shape::maximum_rank> sizes{};
  for (int i = 0; i < shape.rank(); ++i) sizes[static_cast<size_t>(i)] = shape[i];
  sizes[static_cast<size_t>(shape.rank() - 1)] = last;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(shape.rank())));
}

inline Variable make_output(Tensor value, bool records) {
  return Variable(std::move(value), records ? std::make_shared<GradientSlot>() : nullptr);
}

// True when an input passed by value was its value's last handle: the operation may write its memory.
inline bool is_given_up(const Variable& input) { return !input.parameter() && is_exclusive(input.value()); }

// Statistics and losses of float16 and bfloat16 tensors are float32.
inline DType statistics_dtype(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

// Target for the gradient of an activation, in its dtype, or nothing when it needs none.
inline GradientTarget target_of(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype) {
  if (!variable.requires_gradient()) return {};
  return gradient_target(context, variable, shape, dtype);
}

// The same for a weight, bias or table, whose gradient is float32 where values of `dtype` are narrower.
inline GradientTarget parameter_target(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype) {
  return target_of(context, variable, shape, statistics_dtype(dtype));
}

// The gradient that has arrived at an operation's output, in the output's dtype; undefined when none has. It comes wider when
// an operation took a computed bfloat16 value for its weight, bias or table: ShapeError, because kernels trust dtypes.
inline Tensor output_gradient(std::string_view operation, const Variable& output, DType dtype) {
  Tensor gradient = take_gradient(output);
  require_shape(!gradient.defined() || gradient.dtype() == dtype, operation, ": the output is ", name_of(dtype),
                ", its gradient arrived as ", gradient.defined() ? gradient.to_string() : "",
                "; weights, biases and tables must be parameters when computing in ", name_of(dtype));
  return gradient;
}

}  // namespace dmuon
