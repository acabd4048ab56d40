// The part of cuBLASLt that the CUDA backend calls, with the real header's signatures, as plain loops. What the library would
// refuse, or would answer with a wrong result, is refused here: descriptors that do not fit together, an algorithm of another
// product, addresses less aligned than promised or outside device memory, results that overlap operands, too little scratch.
//
// Products take their place in the stream. One of them is two entries: the first signs its scratch, the second looks for its
// signature, so that two streams that share scratch without an order between them are found.
#include <cublasLt.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda_on_host/cublas_product.h"
#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/stream_queue.h"

struct cublasLtContext {
  int made = 0;
};

namespace {

using namespace cuda_on_host;

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

// What cublasLtMatmulAlgo_t holds: which product it was chosen for.
struct Algorithm {
  uint64_t magic, product, workspace;
  uint32_t alignments[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint64_t algorithm_magic = 0x616c676f72697468;
constexpr uint64_t algorithm_workspace = 64;

Operation& operation_of(cublasLtMatmulDesc_t p) { return *reinterpret_cast<Operation*>(p); }
Layout& layout_of(cublasLtMatrixLayout_t p) { return *reinterpret_cast<Layout*>(p); }
Preference& preference_of(cublasLtMatmulPreference_t p) { return *reinterpret_cast<Preference*>(p); }

cublasStatus_t refuse(const char* why, cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
  std::fprintf(stderr, "cublas_on_host: %s\n", why);
  return status;
}

template <class T>
cublasStatus_t store(T& value, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof value) return refuse("an attribute of another size");
  std::memcpy(&value, from, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t understand_epilogue(const Operation& o, const Layout& d) {
  if (o.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (!takes_bias(o.epilogue) && !gives_bias_gradient(o.epilogue) && !keeps(o.epilogue))
    return refuse("an epilogue", CUBLAS_STATUS_NOT_SUPPORTED);
  if (planned("epilogue=" + std::to_string(o.epilogue))) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.mode != CUBLASLT_BATCH_MODE_STRIDED || d.batch != 1) return refuse("an epilogue of a batch", CUBLAS_STATUS_NOT_SUPPORTED);
  if (o.bias_type != -1 && static_cast<uint32_t>(o.bias_type) != d.type) return refuse("a bias of another type than the result");
  // The form in which the field asks for them: the operand that is summed lies along its own side of the result.
  if (o.epilogue == CUBLASLT_EPILOGUE_BGRADB && o.transpose_b != CUBLAS_OP_T) return refuse("BGRADB", CUBLAS_STATUS_NOT_SUPPORTED);
  if (o.epilogue == CUBLASLT_EPILOGUE_BGRADA && o.transpose_a != CUBLAS_OP_N) return refuse("BGRADA", CUBLAS_STATUS_NOT_SUPPORTED);
  if (!keeps(o.epilogue)) return CUBLAS_STATUS_SUCCESS;
  if (o.kept_type != -1 && static_cast<uint32_t>(o.kept_type) != d.type) return refuse("kept values of another type than the result");
  if (o.kept_leading % 8 != 0 || o.kept_leading < d.height()) return refuse("a leading dimension of kept values");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t understand(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d, Product& product) {
  if (o.compute != CUBLAS_COMPUTE_32F || o.scale != CUDA_R_32F) return refuse("only float32 sums", CUBLAS_STATUS_NOT_SUPPORTED);
  for (const Layout* x : {&a, &b, &c, &d}) {
    if (x->type != CUDA_R_32F && x->type != CUDA_R_16F && x->type != CUDA_R_16BF) return refuse("a type", CUBLAS_STATUS_NOT_SUPPORTED);
    if (x->rows == 0 || x->columns == 0 || x->leading < x->height()) return refuse("an empty matrix or a leading dimension");
    if (x->batch != d.batch || x->mode != d.mode || x->batch < 1) return refuse("batches that differ");
  }
  if (a.type != b.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F))
    return refuse("types that do not go together", CUBLAS_STATUS_NOT_SUPPORTED);
  const bool ta = o.transpose_a == CUBLAS_OP_T, tb = o.transpose_b == CUBLAS_OP_T;
  product = {d.height(), d.width(), ta ? a.height() : a.width()};
  if ((ta ? a.width() : a.height()) != product.m || (tb ? b.width() : b.height()) != product.k ||
      (tb ? b.height() : b.width()) != product.n || c.rows != d.rows || c.columns != d.columns)
    return refuse("sizes that do not fit");
  return understand_epilogue(o, d);
}

uint64_t fingerprint(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  uint64_t hash = 1469598103934665603u;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  mix(static_cast<uint64_t>(o.transpose_a)), mix(static_cast<uint64_t>(o.transpose_b)), mix(o.epilogue),
      mix(static_cast<uint64_t>(o.kept_leading));
  for (const Layout* x : {&a, &b, &c, &d})
    mix(x->type), mix(x->rows), mix(x->columns), mix(static_cast<uint64_t>(x->leading)), mix(x->mode);
  return hash;
}

bool on_device(const void* data, int64_t bytes) { return is_device_memory(data) && range_error(data, static_cast<size_t>(bytes)).empty(); }

bool aligned(const void* data, uint32_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

bool overlap(const void* x, int64_t x_bytes, const void* y, int64_t y_bytes) {
  const auto *p = static_cast<const char*>(x), *q = static_cast<const char*>(y);
  return p < q + y_bytes && q < p + x_bytes;
}

// Planned: an algorithm that was chosen for other numbers of matrices.
bool refuses_batch(const Layout& d) {
  return d.mode == CUBLASLT_BATCH_MODE_POINTER_ARRAY && planned("batch_by_pointers=" + std::to_string(d.batch));
}

// Null when the matrices of one product may be used, else the reason why not.
const char* complaint(const Call& call, const Algorithm& algorithm, const void* x, const void* y, const void* c, const void* to) {
  const void* data[] = {x, y, c, to};
  const Layout* layouts[] = {&call.a, &call.b, &call.d, &call.d};
  for (int i = 0; i < 4; ++i) {
    if (data[i] == nullptr || !on_device(data[i], extent(*layouts[i]))) return "a matrix outside device memory";
    if (!aligned(data[i], algorithm.alignments[i])) return "a matrix less aligned than promised";
  }
  for (int i = 0; i < 2; ++i)
    if (overlap(data[i], extent(*layouts[i]), to, extent(call.d))) return "a result that overlaps an operand";
  if (c != to && overlap(c, extent(call.d), to, extent(call.d))) return "c and d that overlap in part";
  return nullptr;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_OTHER";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused by the stand-in of cuBLASLt, which has said why"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute, cudaDataType_t scale) {
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &operation_of(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  Operation& o = operation_of(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return store(o.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return store(o.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return store(o.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return store(o.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return store(o.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return store(o.kept_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return store(o.kept, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return store(o.kept_leading, value, bytes);
    default:
      return refuse("an attribute of a product that the stand-in does not know", CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{.type = static_cast<uint32_t>(type), .rows = rows, .columns = columns, .leading = leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &layout_of(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  Layout& x = layout_of(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return store(x.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_MODE:
      return store(x.mode, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return store(x.stride, value, bytes);
    default:
      return refuse("an attribute of a matrix that the stand-in does not know", CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &preference_of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& p = preference_of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return store(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return store(p.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return store(p.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return store(p.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return store(p.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return store(p.alignments[3], value, bytes);
    default:
      return refuse("a preference that the stand-in does not know", CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  Product product;
  const cublasStatus_t status = understand(operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference& p = preference_of(preference);
  if (wanted < 1) return refuse("no algorithm asked for");
  if (p.workspace < algorithm_workspace) return refuse("too little scratch", CUBLAS_STATUS_NOT_SUPPORTED);
  Algorithm algorithm{algorithm_magic,
                      fingerprint(operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d)),
                      algorithm_workspace,
                      {p.alignments[0], p.alignments[1], p.alignments[2], p.alignments[3]}};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm_workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  Product product;
  const cublasStatus_t status = understand(operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm{};
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.magic != algorithm_magic ||
      algorithm.product != fingerprint(operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d)))
    return refuse("the algorithm of another product");
  if (refuses_batch(layout_of(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->algo = *algo;
  result->workspaceSize = algorithm.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr || beta == nullptr || algo == nullptr) return refuse("a null argument");
  Call call{
      operation_of(operation),         layout_of(a_layout), layout_of(b_layout), layout_of(d_layout), {}, *static_cast<const float*>(alpha),
      *static_cast<const float*>(beta)};
  const cublasStatus_t status = understand(call.operation, call.a, call.b, layout_of(c_layout), call.d, call.product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm{};
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.magic != algorithm_magic || algorithm.product != fingerprint(call.operation, call.a, call.b, layout_of(c_layout), call.d))
    return refuse("the algorithm of another product");
  if (workspace_bytes < algorithm.workspace || !aligned(workspace, 256) || !on_device(workspace, static_cast<int64_t>(algorithm.workspace)))
    return refuse("scratch that is too small, not aligned to 256 or outside device memory");
  const Operation& o = call.operation;
  if ((takes_bias(o.epilogue) || gives_bias_gradient(o.epilogue)) &&
      (!aligned(o.bias, 16) || !on_device(o.bias, vector_size(o, call.d) * element_bytes(call.d.type))))
    return refuse("a bias that is not aligned to 16 or outside device memory");
  if (keeps(o.epilogue) &&
      (!aligned(o.kept, 16) || !on_device(o.kept, kept_bytes(o, call.d)) || overlap(o.kept, kept_bytes(o, call.d), d, extent(call.d))))
    return refuse("kept values that are not aligned to 16, outside device memory or where the result is");
  if (refuses_batch(call.d)) return refuse("a number of matrices", CUBLAS_STATUS_NOT_SUPPORTED);
  const bool by_pointers = call.d.mode == CUBLASLT_BATCH_MODE_POINTER_ARRAY;
  if (by_pointers) {
    for (const void* list : {a, b, c, static_cast<const void*>(d)})
      if (!aligned(list, 8) || !on_device(list, 8 * call.d.batch)) return refuse("a list of addresses outside device memory");
  } else if (call.d.batch != 1) {
    return refuse("batches by strides", CUBLAS_STATUS_NOT_SUPPORTED);
  } else if (const char* why = complaint(call, algorithm, a, b, c, d)) {
    return refuse(why);
  }

  static std::atomic<uint64_t> calls{0};
  const uint64_t signature = ++calls;
  auto* scratch = static_cast<uint64_t*>(workspace);
  const auto begin = [=] {
    *scratch = signature;
    mark_written(scratch, sizeof *scratch);
  };
  const auto multiply = [=] {
    const auto stop = [](const char* why) { fail_device(cudaErrorIllegalAddress, std::string("cublasLtMatmul: ") + why); };
    if (*scratch != signature) return stop("two products use one scratch at once: a wait between their streams is missing");
    if (!by_pointers) return call.one(a, b, c, d);
    const auto list = [](const void* of, int i) { return static_cast<void* const*>(of)[i]; };
    for (int i = 0; i < call.d.batch; ++i) {
      if (const char* why = complaint(call, algorithm, list(a, i), list(b, i), list(c, i), list(d, i))) return stop(why);
      call.one(list(a, i), list(b, i), list(c, i), list(d, i));
    }
  };
  if (queue_work(stream, "cublasLtMatmul, its scratch", begin) != cudaSuccess ||
      queue_work(stream, "cublasLtMatmul", multiply) != cudaSuccess)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
