#include "dmuon/core/tensor.h"

#include "dmuon/core/text.h"

namespace dmuon {

Tensor::Tensor(StorageHandle storage, int64_t offset, Shape shape, DType dtype)
    : storage_(std::move(storage)), offset_(offset), shape_(shape), dtype_(dtype) {
  if (!storage_) throw ShapeError("a tensor needs storage");
  if (offset < 0 || offset % size_of(dtype) != 0 || elements() > (storage_->bytes() - offset) / size_of(dtype))
    throw ShapeError(text("tensor ", to_string(), " at byte ", offset, " leaves its storage of ", storage_->bytes(), " bytes"));
}

int64_t Tensor::rows() const {
  if (rank() == 0) return 1;
  int64_t rows = 1;
  for (int i = 0; i + 1 < rank(); ++i) rows *= size(i);
  return rows;
}

Tensor Tensor::reshape(Shape shape) const {
  if (shape.elements() != elements()) throw ShapeError(text("cannot view ", to_string(), " as ", shape.to_string()));
  return Tensor(storage_, offset_, shape, dtype_);
}

Tensor Tensor::slice(int64_t first, int64_t count) const {
  if (rank() == 0 || first < 0 || count < 0 || first > size(0) - count)
    throw ShapeError(text("slice [", first, ", ", first, " + ", count, ") leaves ", to_string()));
  std::array<int64_t, Shape::maximum_rank> sizes{};
  int64_t inner = 1;
  for (int i = 1; i < rank(); ++i) {
    sizes[static_cast<size_t>(i)] = size(i);
    inner *= size(i);
  }
  sizes[0] = count;
  return Tensor(storage_, offset_ + first * inner * size_of(dtype_),
                Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(rank()))), dtype_);
}

Tensor Tensor::flat(int64_t first, int64_t count) const {
  if (first < 0 || count < 0 || first > elements() - count)
    throw ShapeError(text("elements [", first, ", ", first, " + ", count, ") leave ", to_string()));
  return Tensor(storage_, offset_ + first * size_of(dtype_), Shape{count}, dtype_);
}

std::string Tensor::to_string() const { return text(name_of(dtype_), shape_.to_string()); }

void Tensor::wrong_dtype(DType asked) const { throw ShapeError(text("asked for ", name_of(asked), " elements of a tensor ", to_string())); }

}  // namespace dmuon
