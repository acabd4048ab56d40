#include <algorithm>
#include <utility>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/matrix_kernels.h"
#include "backend/cuda/matrix_key.h"
#include "backend/cuda/symmetric_product.h"
#include "backend/kernel_flops.h"

namespace dmuon::cuda {
namespace {

// Beyond this size one matrix fills a device and takes the faster kernels of single products.
constexpr int64_t fills_a_device = int64_t{1536} * 1536;

ProductKey key_of(const BatchedProduct& p, size_t i) {
  ProductKey key;
  key.m = p.d[i].rows(), key.n = p.d[i].size(-1), key.k = p.transpose_a ? p.a[i].rows() : p.a[i].size(-1);
  key.transpose_a = p.transpose_a, key.transpose_b = p.transpose_b;
  key.operands = p.a[i].dtype(), key.result = p.d[i].dtype();
  key.alignment_a = alignment_of(p.a[i]), key.alignment_b = alignment_of(p.b[i]);
  key.alignment_d = alignment_of(p.d[i]);
  key.alignment_c = p.beta != 0.0 ? alignment_of(p.c[i]) : key.alignment_d;
  key.by_pointers = key.m * key.n < fills_a_device;
  return key;
}

double alpha_of(const BatchedProduct& p, size_t i) { return p.alphas.empty() ? p.alpha : p.alphas[i]; }

std::vector<Tensor> touched_by(const BatchedProduct& p) {
  std::vector<Tensor> touched = p.d;
  for (const auto* operands : {&p.a, &p.b, &p.c}) touched.insert(touched.end(), operands->begin(), operands->end());
  return touched;
}

BatchedProduct range(const BatchedProduct& p, size_t first, size_t end) {
  const auto cut = [&](const auto& all) {
    using List = std::remove_cvref_t<decltype(all)>;
    return all.empty() ? List{} : List(all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(end));
  };
  BatchedProduct part = p;
  part.a = cut(p.a), part.b = cut(p.b), part.c = cut(p.c), part.d = cut(p.d), part.alphas = cut(p.alphas);
  return part;
}

}  // namespace

Matrix::Matrix(CudaBackend& backend) : Family(backend) {}
Matrix::~Matrix() = default;

CublasLt& Matrix::library() {
  const std::lock_guard lock(mutex_);
  if (!library_) library_ = std::make_unique<CublasLt>();
  return *library_;
}

Tensor Matrix::library_workspace(Stream& stream) {
  const std::lock_guard lock(mutex_);
  Tensor& workspace = workspaces_[&stream];
  if (!workspace.defined())
    workspace =
        backend_.allocate(Shape{CublasLt::workspace_bytes}, DType::uint8, MemoryCategory::workspace, "scratch of cuBLAS, one per stream");
  return workspace;
}

void Matrix::multiply(Stream& stream, const Multiply& m) {
  const Tensor workspace = library_workspace(stream);
  backend_.enqueue(stream, "multiply", flops_of(m), {m.a, m.b, m.c, m.bias, workspace}, [&](cudaStream_t handle) {
    ProductKey key = key_of(m);
    if (key.m == 0 || key.n == 0) return;
    if (key.k == 0) return scale_and_add_bias(m.c, m.beta, m.bias, m.c, handle);
    ProductAddresses addresses{m.a.raw(), m.b.raw(), m.c.raw(), m.c.raw(), m.bias.raw()};
    if (m.bias.defined() && m.bias.dtype() == m.c.dtype() && alignment_of(m.bias) == 16) {
      key.bias = true;
      key.bias = library().supports(key);
    }
    library().run(key, addresses, m.alpha, m.beta, workspace.raw(), handle);
    if (m.bias.defined() && !key.bias) scale_and_add_bias(m.c, 1.0, m.bias, m.c, handle);
  });
}

void Matrix::batched_product(Stream& stream, const BatchedProduct& p) {
  const Tensor workspace = library_workspace(stream);
  const Tensor table = backend_.workspace(4 * largest_matrix_list, DType::int64, "addresses of a batch of products");
  std::vector<Tensor> touched = touched_by(p);
  touched.push_back(workspace);
  touched.push_back(table);
  backend_.enqueue(stream, "batched_product", flops_of(p), touched, [&](cudaStream_t handle) {
    int64_t block_rows = 0;
    if (has_symmetric_product(p)) {
      const SymmetricForm form = backend_.optimizer().forms().of(p, backend_.multiprocessors());
      if (form.kind == SymmetricForm::Kind::kernel) return start_symmetric_product(handle, p, form);
      if (form.kind == SymmetricForm::Kind::blocks) block_rows = form.rows;
    }
    // Neighbours of one key and factor go together.
    for (size_t first = 0, end = 0; first < p.d.size(); first = end) {
      const ProductKey key = key_of(p, first);
      for (end = first + 1; end < p.d.size() && end - first < largest_matrix_list; ++end)
        if (key_of(p, end) != key || alpha_of(p, end) != alpha_of(p, first)) break;
      library_products(key, p, first, end, block_rows, table, workspace, handle);
    }
  });
}

void Matrix::library_products(const ProductKey& key, const BatchedProduct& p, size_t first, size_t end, int64_t block_rows,
                              const Tensor& table, const Tensor& workspace, cudaStream_t stream) {
  if (key.m == 0 || key.n == 0) return;
  const std::span<const Tensor> results(p.d.data() + first, end - first);
  if (key.k == 0) {
    for (size_t i = first; i < end; ++i) scale_and_add_bias(p.beta != 0.0 ? p.c[i] : p.d[i], p.beta, {}, p.d[i], stream);
  } else if (block_rows == 0) {
    products_of_part(key, p, first, end, {}, table, workspace, stream);
  } else {
    for (int64_t row = 0; row < key.m; row += block_rows) {
      ProductKey part = key;
      part.m = std::min(block_rows, key.m - row), part.n = row + part.m;
      part.leading_a = key.transpose_a ? key.m : key.k, part.leading_b = key.transpose_b ? key.k : key.n, part.leading_d = key.n;
      const PartOffsets offsets{key.transpose_a ? row : row * key.k, 0, row * key.n};
      products_of_part(part, p, first, end, offsets, table, workspace, stream);
    }
  }
  if (p.diagonal != 0.0) add_diagonal(results, p.diagonal, stream);
  if (p.symmetric) mirror_lower(results, stream);
}

void Matrix::products_of_part(ProductKey key, const BatchedProduct& p, size_t first, size_t end, const PartOffsets& offsets,
                              const Tensor& table, const Tensor& workspace, cudaStream_t stream) {
  const auto at = [](const Tensor& tensor, int64_t offset) {
    return static_cast<std::byte*>(tensor.raw()) + offset * size_of(tensor.dtype());
  };
  const auto addresses = [&](size_t i) -> ProductAddresses {
    std::byte* const d = at(p.d[i], offsets.d);
    return {at(p.a[i], offsets.a), at(p.b[i], offsets.b), p.beta != 0.0 ? at(p.c[i], offsets.d) : d, d};
  };
  const double alpha = alpha_of(p, first);
  if (key.by_pointers) key.by_pointers = library().supports(key);
  if (!key.by_pointers) {
    for (size_t i = first; i < end; ++i) library().run(key, addresses(i), alpha, p.beta, workspace.raw(), stream);
    return;
  }
  PointerTable pointers{};
  for (size_t i = first; i < end; ++i) {
    const ProductAddresses of = addresses(i);
    const size_t entry = i - first;
    pointers.lists[0].entries[entry] = const_cast<void*>(of.a), pointers.lists[1].entries[entry] = const_cast<void*>(of.b);
    pointers.lists[2].entries[entry] = const_cast<void*>(of.c), pointers.lists[3].entries[entry] = of.d;
  }
  write_pointers(pointers, table.raw(), stream);
  int64_t* list = table.data<int64_t>();
  library().run(key,
                {list, list + largest_matrix_list, list + 2 * largest_matrix_list, list + 3 * largest_matrix_list, nullptr,
                 static_cast<int32_t>(end - first)},
                alpha, p.beta, workspace.raw(), stream);
}

// In rounds of one matrix per queue, so that those that share scratch follow one another.
void Matrix::product_sequence(Stream& stream, const ProductSequence& sequence) {
  const size_t count = sequence.steps.empty() ? 0 : sequence.steps.front().d.size();
  const auto queues = static_cast<size_t>(std::max(sequence.queues, 1));
  for (size_t first = 0; first < count; first += queues)
    for (const BatchedProduct& step : sequence.steps) batched_product(stream, range(step, first, std::min(first + queues, count)));
}

void Matrix::column_sum(Stream& stream, const ColumnSum& s) {
  const Tensor partial =
      backend_.workspace(column_sum_partials(s.in.rows()) * s.in.size(-1), DType::float32, "partial sums of the columns of a matrix");
  backend_.enqueue(stream, "column_sum", 0, {s.in, s.out, partial},
                   [&](cudaStream_t handle) { sum_columns(s.in, partial, s.out, s.accumulate, handle); });
}

}  // namespace dmuon::cuda
