// Matrix products of a library: oneDNN (dnnl/dnnl_gemm.cpp), or none (dnnl/no_dnnl.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dmuon::cpu {

// c[m, n] = alpha op(a) op(b) + beta c, row-major and contiguous; m, n, k > 0.
struct LibraryProduct {
  int64_t m = 0, n = 0, k = 0;
  const float *a = nullptr, *b = nullptr;
  float* c = nullptr;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1, beta = 0;
};

class LibraryGemm {
 public:
  virtual ~LibraryGemm() = default;
  virtual std::string name() const = 0;  // "oneDNN 2.6.3"
  virtual void multiply(const LibraryProduct& product, int threads) = 0;
};

// Null when built without.
std::unique_ptr<LibraryGemm> make_library_gemm();

}  // namespace dmuon::cpu
