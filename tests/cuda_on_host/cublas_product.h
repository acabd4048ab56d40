// A product of cuBLASLt as the stand-in keeps it, and as plain loops.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace cuda_on_host {

struct Operation {
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  // or where the bias gradient goes
  int32_t bias_type = -1, kept_type = -1;
  void* kept = nullptr;  // the input of GELU
  int64_t kept_leading = 0;
};

struct Layout {
  uint32_t type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;
  int32_t batch = 1;
  uint32_t mode = CUBLASLT_BATCH_MODE_STRIDED;
  int64_t stride = 0;

  int64_t height() const { return static_cast<int64_t>(rows); }
  int64_t width() const { return static_cast<int64_t>(columns); }
};

// op(A) is m x k, op(B) k x n.
struct Product {
  int64_t m = 0, n = 0, k = 0;
};

int64_t element_bytes(uint32_t type);

// What an epilogue does.
bool takes_bias(uint32_t epilogue);
bool gives_bias_gradient(uint32_t epilogue);
bool takes_gelu(uint32_t epilogue);
bool gives_gelu(uint32_t epilogue);
inline bool keeps(uint32_t epilogue) { return gives_gelu(epilogue) || takes_gelu(epilogue); }  // the input of GELU

int64_t vector_size(const Operation& o, const Layout& d);  // elements of the bias or of its gradient
int64_t kept_bytes(const Operation& o, const Layout& d);
int64_t extent(const Layout& x);  // bytes from the first element to the last

struct Call {
  Operation operation;
  Layout a, b, d;
  Product product;
  float alpha, beta;

  // The product of one pair of matrices: D = epilogue(alpha op(A) op(B) + beta C), sums over k in order.
  void one(const void* x, const void* y, const void* c, void* to) const;
};

}  // namespace cuda_on_host
