// Products with passes on the way (dmuon/backend/product_epilogues.h), as epilogues of the library.
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/matrix_kernels.h"
#include "backend/cuda/matrix_key.h"
#include "backend/kernel_flops.h"

namespace dmuon::cuda {
namespace {

bool is_aligned(const Tensor& tensor) { return alignment_of(tensor) == 16; }

bool is_empty(const ProductKey& key) { return key.m == 0 || key.n == 0 || key.k == 0; }

// The library wants kept values in the result's type, 16 bytes aligned, with rows of a multiple of 8 elements.
bool can_keep(const ProductKey& key, const Tensor& pre_activation) {
  return key.n % 8 == 0 && pre_activation.dtype() == key.result && is_aligned(pre_activation);
}

}  // namespace

bool Matrix::has_algorithm(const ProductKey& key) {
  if (backend_.shape_only()) return true;
  check(cudaSetDevice(backend_.device().index), "the device of a product");
  return library().supports(key);
}

bool Matrix::multiply_with_bias_gradient(Stream& stream, const BiasGradientProduct& g) {
  const Multiply& m = g.product;
  ProductKey key = key_of(m);
  key.epilogue = Epilogue::bias_gradient;
  if (is_empty(key) || !m.transpose_a || m.alpha != 1.0 || m.bias.defined() || g.d_bias.dtype() != key.result || !has_algorithm(key))
    return false;
  const Tensor workspace = library_workspace(stream);
  // The library overwrites, and wants an aligned vector.
  const bool direct = !g.accumulate_bias && is_aligned(g.d_bias);
  const Tensor sums = direct ? Tensor() : backend_.workspace(key.m, key.result, "a bias gradient to be added");
  backend_.enqueue(stream, "multiply_with_bias_gradient", flops_of(m), {m.a, m.b, m.c, g.d_bias, workspace, sums},
                   [&](cudaStream_t handle) {
                     ProductAddresses addresses{m.a.raw(), m.b.raw(), m.c.raw(), m.c.raw()};
                     addresses.bias_gradient = direct ? g.d_bias.raw() : sums.raw();
                     library().run(key, addresses, 1.0, m.beta, workspace.raw(), handle);
                     if (direct) return;
                     const Tensor row = g.d_bias.reshape(Shape{1, key.m});
                     scale_and_add_bias(row, g.accumulate_bias ? 1.0 : 0.0, sums, row, handle);
                   });
  return true;
}

bool Matrix::multiply_gelu(Stream& stream, const GeluProduct& g) {
  const Multiply& m = g.product;
  ProductKey key = key_of(m);
  key.epilogue = Epilogue::gelu;
  key.bias = m.bias.defined();
  if (is_empty(key) || m.alpha != 1.0 || m.beta != 0.0 || !can_keep(key, g.pre_activation)) return false;
  if (key.bias && (m.bias.dtype() != key.result || !is_aligned(m.bias))) return false;
  if (!has_algorithm(key)) return false;
  const Tensor workspace = library_workspace(stream);
  backend_.enqueue(stream, "multiply_gelu", flops_of(m), {m.a, m.b, m.c, m.bias, g.pre_activation, workspace}, [&](cudaStream_t handle) {
    ProductAddresses addresses{m.a.raw(), m.b.raw(), m.c.raw(), m.c.raw(), m.bias.raw()};
    addresses.pre_activation = g.pre_activation.raw();
    library().run(key, addresses, 1.0, 0.0, workspace.raw(), handle);
  });
  return true;
}

bool Matrix::multiply_gelu_gradient(Stream& stream, const GeluGradientProduct& g) {
  const Multiply& m = g.product;
  ProductKey key = key_of(m);
  key.epilogue = Epilogue::gelu_gradient;
  if (is_empty(key) || m.alpha != 1.0 || m.beta != 0.0 || m.bias.defined() || !can_keep(key, g.pre_activation) || !has_algorithm(key))
    return false;
  const Tensor workspace = library_workspace(stream);
  backend_.enqueue(stream, "multiply_gelu_gradient", flops_of(m), {m.a, m.b, m.c, g.pre_activation, workspace}, [&](cudaStream_t handle) {
    ProductAddresses addresses{m.a.raw(), m.b.raw(), m.c.raw(), m.c.raw()};
    addresses.pre_activation = g.pre_activation.raw();
    library().run(key, addresses, 1.0, 0.0, workspace.raw(), handle);
  });
  return true;
}

}  // namespace dmuon::cuda
