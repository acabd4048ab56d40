#include "cuda_on_host/cublas_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/errors.h"

namespace cuda_on_host {

int64_t element_bytes(uint32_t type) { return type == CUDA_R_32F ? 4 : 2; }

bool takes_bias(uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }

// Bias gradients: along which side of the result, and what is summed.
bool gives_bias_gradient(uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}
bool gives_gelu(uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
bool takes_gelu(uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; }

int64_t vector_size(const Operation& o, const Layout& d) { return o.epilogue == CUBLASLT_EPILOGUE_BGRADB ? d.width() : d.height(); }

int64_t kept_bytes(const Operation& o, const Layout& d) { return ((d.width() - 1) * o.kept_leading + d.height()) * element_bytes(d.type); }

int64_t extent(const Layout& x) { return ((x.width() - 1) * x.leading + x.height()) * element_bytes(x.type); }

namespace {

// The approximation by tanh, and its derivative.
float gelu(float x) { return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float gelu_gradient(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * x * x);
}

float load(uint32_t type, const void* from, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[i];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(from)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
}

void save(uint32_t type, void* to, int64_t i, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(to)[i] = value;
  else if (type == CUDA_R_16F)
    static_cast<__half*>(to)[i] = __float2half_rn(value);
  else
    static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(value);
}

// op(matrix) as rows x columns floats, row-major.
std::vector<float> unpack(const Layout& x, const void* data, bool transposed) {
  const int64_t rows = transposed ? x.width() : x.height(), columns = transposed ? x.height() : x.width();
  std::vector<float> values(static_cast<size_t>(rows * columns));
  float* to = values.data();
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) *to++ = load(x.type, data, transposed ? i * x.leading + j : j * x.leading + i);
  return values;
}

// sums[n][m] = sum over k of b[k][n] * a[m][k], k in order; a transposed as [k][m], so that the inner loop runs along memory
// and becomes vector instructions: most time of small runs goes here.
void add_up(const float* a, const float* b, float* sums, const Product p) {
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t l = 0; l < p.k; ++l) {
      const float factor = b[l * p.n + j];
      const float* __restrict from = a + l * p.m;
      float* __restrict to = sums + j * p.m;
      for (int64_t i = 0; i < p.m; ++i) to[i] += factor * from[i];
    }
}

}  // namespace

void Call::one(const void* x, const void* y, const void* c, void* to) const {
  const std::vector<float> left = unpack(a, x, operation.transpose_a != CUBLAS_OP_T),
                           right = unpack(b, y, operation.transpose_b == CUBLAS_OP_T);
  std::vector<float> sums(static_cast<size_t>(product.m * product.n), 0.0f);
  add_up(left.data(), right.data(), sums.data(), product);
  std::vector<float> vector(static_cast<size_t>(vector_size(operation, d)), 0.0f);  // the bias gradient
  for (int64_t j = 0; j < product.n; ++j)
    for (int64_t i = 0; i < product.m; ++i) {
      float value = alpha * sums[static_cast<size_t>(j * product.m + i)];
      if (beta != 0.0f) value += beta * load(d.type, c, j * d.leading + i);
      if (takes_bias(operation.epilogue)) value += load(d.type, operation.bias, i);
      const int64_t at = j * operation.kept_leading + i;
      if (gives_gelu(operation.epilogue)) save(d.type, operation.kept, at, value), value = gelu(value);
      if (takes_gelu(operation.epilogue)) value *= gelu_gradient(load(d.type, operation.kept, at));
      if (operation.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) vector[static_cast<size_t>(i)] += value;
      save(d.type, to, j * d.leading + i, value);
    }
  if (gives_gelu(operation.epilogue)) mark_written(operation.kept, static_cast<size_t>(kept_bytes(operation, d)));
  // left is [k][m], right [k][n].
  const bool of_b = operation.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (of_b || operation.epilogue == CUBLASLT_EPILOGUE_BGRADA)
    for (size_t i = 0; i < (of_b ? right : left).size(); ++i) vector[i % vector.size()] += (of_b ? right : left)[i];
  if (!gives_bias_gradient(operation.epilogue)) vector.clear();
  for (size_t i = 0; i < vector.size(); ++i) save(d.type, operation.bias, static_cast<int64_t>(i), vector[i]);
  if (!vector.empty()) mark_written(operation.bias, vector.size() * static_cast<size_t>(element_bytes(d.type)));
  if (d.type == CUDA_R_16F && planned("float16_product=" + std::to_string(product.m) + "x" + std::to_string(product.n)))
    save(d.type, to, (d.width() - 1) * d.leading + product.m - 1, 1.0f);
  mark_written(to, static_cast<size_t>(((d.width() - 1) * d.leading + d.height()) * element_bytes(d.type)));
}

}  // namespace cuda_on_host
