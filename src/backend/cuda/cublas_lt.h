// Matrix products through cuBLASLt. Its matrices are column-major and ours row-major: a row-major matrix is the column-major
// transpose of itself, so d = a b is asked for as d^T = b^T a^T on the same memory, without a copy.
//
// The algorithm of a product is asked for once per ProductKey and kept, so that equal products give equal bits within a run,
// whatever their neighbours. Only algorithms whose order of summation is fixed are admitted. float32 multiplies float32 (no
// TF32); every sum is float32.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dmuon/core/dtype.h"

namespace dmuon::cuda {

// What a product does to its result or beside it; dmuon/backend/product_epilogues.h. The library's GELU is the approximation by tanh
// (CUBLASLT_EPILOGUE_GELU; so is what PyTorch's and TensorRT-LLM's fused gelu_tanh call), so gelu by erf never comes here.
enum class Epilogue : uint8_t {
  none,
  bias_gradient,  // also the sums of op(a) along k, in the result's type; takes a transposed a and no bias
  gelu,           // of the result; what goes into it, bias included, is kept
  gelu_gradient,  // the result times gelu'(what was kept)
};

// What decides the algorithm of d[m, n] = alpha * op(a) * op(b) + beta * c (+ bias[n] on every row).
struct ProductKey {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType operands = DType::float32;  // of a and b: float32, bfloat16 or float16
  DType result = DType::float32;    // of c, d and bias: float32 or the operands'
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  bool by_pointers = false;  // a batch: a, b, c and d are arrays of pointers in device memory
  bool split_sums = false;   // parts of k may be added up apart from one another, where the result is small and k large
  // Elements from one row of a matrix (as it is stored) to the next; 0: without gaps. c is laid out like d.
  int64_t leading_a = 0, leading_b = 0, leading_d = 0;
  // What the addresses of the matrices are multiples of, in bytes.
  int32_t alignment_a = 16, alignment_b = 16, alignment_c = 16, alignment_d = 16;

  auto operator<=>(const ProductKey&) const = default;
  std::string to_string() const;  // "float32[3, 5] = [3, 7] [7, 5]", for messages
};

// Device addresses; of a batch by pointers, device addresses of arrays of device addresses.
struct ProductAddresses {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  int32_t batch = 1;
  void* bias_gradient = nullptr;   // aligned to 16, like pre_activation
  void* pre_activation = nullptr;  // read by gelu_gradient, written by gelu
};

class CublasLt {
 public:
  // What every run() must bring as scratch; the algorithms may use all of it.
  static constexpr int64_t workspace_bytes = int64_t{32} << 20;

  CublasLt();  // DeviceError when the library cannot start
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // False when the library has no algorithm for the key; of a batch by pointers: none that takes every number of matrices up to
  // largest_matrix_list, so that the number does not decide the bits.
  bool supports(const ProductKey& key);
  // Queues the product; DeviceError names it when the library refuses. beta == 0 does not read c.
  void run(const ProductKey& key, const ProductAddresses& addresses, double alpha, double beta, void* workspace, cudaStream_t stream);

 private:
  struct Plan;
  const std::unique_ptr<Plan>& plan(const ProductKey& key);

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

// "13.1.0"
std::string cublas_lt_version();

}  // namespace dmuon::cuda
