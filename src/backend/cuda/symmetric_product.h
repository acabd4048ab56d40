// d = alpha op(a) op(b) + beta c + diagonal I where the exact result is symmetric: tiles of the lower triangle only, each
// element below the diagonal written twice, so that both triangles agree bit for bit. Half the FLOPs of a full product.
//
// float16: tensor cores, float32 sums, one rounding at the end. float32: fused multiply-adds. An element sums over k in steps
// that go up in order, 16 products at once in float16 and one in float32, whatever the tile, the depth of the pipeline and the
// batch: all forms of the kernel give equal bits, so that the choice among them is free (design: what changes bits is fixed by the shape).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"

namespace dmuon::cuda {

// How the float16 product is computed. By the kernel: tiles of rows x columns elements, and how many of their slices along k are in
// flight. By the library, which adds up in an order of its own: in block rows of `rows` up to the diagonal, or in full; mirrored both.
struct SymmetricForm {
  enum class Kind : uint8_t { kernel, blocks, full };
  Kind kind = Kind::kernel;
  int rows = 64, columns = 64, depth = 3;
  bool operator==(const SymmetricForm&) const = default;
  std::string name() const;  // "128x64x3", "blocks256", "full"
};
// Of the kernel.
std::span<const SymmetricForm> symmetric_forms();
// Of the library, for this shape: two to eight block rows.
std::vector<SymmetricForm> library_forms(const SymmetricShape& shape);
// The fixed choice: large tiles once there are enough of them for every multiprocessor.
SymmetricForm fixed_symmetric_form(int64_t n, int64_t batch, int multiprocessors);

// The forms that were chosen by measurement, by shape and, for those of the kernel, number of matrices (in powers of two).
class SymmetricForms {
 public:
  void choose(const SymmetricShape& shape, const SymmetricForm& form);
  // The chosen one or, of products that nothing was chosen for, the fixed one.
  SymmetricForm of(const BatchedProduct& product, int multiprocessors) const;

 private:
  using Key = std::array<int64_t, 5>;
  std::map<Key, SymmetricForm> chosen_;
};

// Tiles of 64 x 64 below the diagonal stay within the limit of grid.x.
inline constexpr int64_t widest_symmetric = int64_t{1} << 21;
// Whether start_symmetric_product takes these dtypes and sizes: all operands float16, or all float32; results up to 2^21 wide.
bool has_symmetric_product(const BatchedProduct& product);
// Queues product.symmetric; `form` is one of symmetric_forms(), not of the library's (float32 has one form and ignores it). DeviceError for
// another.
void start_symmetric_product(cudaStream_t stream, const BatchedProduct& product, const SymmetricForm& form);

}  // namespace dmuon::cuda
