// Sizes of a dense row-major tensor: 64-bit, at most eight dimensions, no negative sizes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace dmuon {

class Shape {
 public:
  static constexpr int maximum_rank = 8;

  Shape() = default;  // a scalar: rank 0, one element
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  // Throws ShapeError when a size is negative, the rank too large or the element count overflows 63 bits.
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  // Negative indices count from the end: shape[-1] is the innermost size.
  int64_t operator[](int dimension) const { return sizes_[static_cast<size_t>(dimension < 0 ? rank_ + dimension : dimension)]; }
  int64_t elements() const { return elements_; }
  std::span<const int64_t> sizes() const { return {sizes_.data(), static_cast<size_t>(rank_)}; }
  std::string to_string() const;  // "[2, 3]"

  friend bool operator==(const Shape& a, const Shape& b) { return a.rank_ == b.rank_ && a.sizes_ == b.sizes_; }

 private:
  std::array<int64_t, maximum_rank> sizes_{};
  int rank_ = 0;
  int64_t elements_ = 1;
};

}  // namespace dmuon
