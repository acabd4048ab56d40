// A dense row-major tensor over shared storage. A Tensor is a cheap handle: copying it shares memory; views keep the
// storage alive. Its memory is touched only by kernels of a Backend and by explicit host copies (backend.h); data()
// is for those two.
#pragma once

#include "dmuon/core/dtype.h"
#include "dmuon/core/error.h"
#include "dmuon/core/memory.h"
#include "dmuon/core/shape.h"

namespace dmuon {

class Tensor {
 public:
  Tensor() = default;  // undefined
  // `offset` in bytes, a multiple of the element size. Throws ShapeError if the view leaves the storage.
  Tensor(StorageHandle storage, int64_t offset, Shape shape, DType dtype);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size(int dimension) const { return shape_[dimension]; }
  int rank() const { return shape_.rank(); }
  int64_t elements() const { return shape_.elements(); }
  DType dtype() const { return dtype_; }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  const StorageHandle& storage() const { return storage_; }
  int64_t offset() const { return offset_; }

  // Rows of a matrix view: the product of all but the last size. size(-1) are the columns.
  int64_t rows() const;

  // Views; none copies. reshape keeps the element count; slice takes `count` entries of the leading dimension;
  // flat takes a one-dimensional range of elements. All throw ShapeError out of range.
  Tensor reshape(Shape shape) const;
  Tensor slice(int64_t first, int64_t count) const;
  Tensor flat(int64_t first, int64_t count) const;
  Tensor flat() const { return reshape(Shape{elements()}); }

  // Typed pointer to the first element; throws ShapeError if T is not the dtype. Null in a shape-only pass.
  template <class T>
  T* data() const {
    if (DTypeOf<T>::value != dtype_) wrong_dtype(DTypeOf<T>::value);
    return static_cast<T*>(raw());
  }
  void* raw() const { return storage_ && storage_->data() ? static_cast<char*>(storage_->data()) + offset_ : nullptr; }

  std::string to_string() const;  // "float32[2, 3]", for messages

 private:
  [[noreturn]] void wrong_dtype(DType asked) const;

  StorageHandle storage_;
  int64_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::float32;
};

}  // namespace dmuon
