#include "backend/cuda/cublas_lt.h"

#include "backend/cuda/matrix_kernels.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

void check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(text(what, ": ", cublasLtGetStatusName(status), ": ", cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return CUDA_R_32F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    default:
      throw ShapeError(text("products on the device take float32, bfloat16 or float16, found ", name_of(dtype)));
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* p) const { cublasLtMatmulDescDestroy(p); }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const { cublasLtMatrixLayoutDestroy(p); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const { cublasLtMatmulPreferenceDestroy(p); }
};
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy>;

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value), "an attribute of a product");
}

template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof value), "an attribute of a matrix");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "a preference of a product");
}

// A row-major matrix [rows, columns]; `leading` as in ProductKey.
Layout make_layout(DType dtype, int64_t rows, int64_t columns, int64_t leading, bool by_pointers) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                   leading > 0 ? leading : columns),
        text("a matrix of ", rows, " rows and ", columns, " columns"));
  Layout owner(layout);
  if (by_pointers) set(owner, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, static_cast<uint32_t>(CUBLASLT_BATCH_MODE_POINTER_ARRAY));
  return owner;
}

cublasLtEpilogue_t epilogue_of(const ProductKey& key) {
  switch (key.epilogue) {
    case Epilogue::bias_gradient:
      return CUBLASLT_EPILOGUE_BGRADB;  // of the transposed equation: the library's B is our a
    case Epilogue::gelu:
      return key.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

bool keeps_pre_activation(Epilogue epilogue) { return epilogue == Epilogue::gelu || epilogue == Epilogue::gelu_gradient; }

// The library guesses the alignment of vectors and kept values from the addresses that it is asked about: this is all we promise.
const void* const aligned_to_16 = reinterpret_cast<const void*>(uintptr_t{16});

constexpr int32_t typical_batch = 16;  // what the algorithm of a batch by pointers is chosen for, however many there are

}  // namespace

struct CublasLt::Plan {
  Operation operation;
  Layout a, b, d;  // c is laid out like d
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
  int32_t batch = 1;  // what the layouts say

  // Whether the library takes the algorithm for this many matrices. Asks the host only: nothing is queued.
  bool takes(cublasLtHandle_t handle, int32_t count) {
    set_batch(count);
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, operation.get(), b.get(), a.get(), d.get(), d.get(), &algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(workspace_bytes);
  }
  void set_batch(int32_t count) {
    if (batch == count) return;
    for (const Layout* layout : {&a, &b, &d}) set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    batch = count;
  }
};

std::string ProductKey::to_string() const {
  const auto operand = [](int64_t rows, int64_t columns, bool transposed) {
    return transposed ? text("[", columns, ", ", rows, "]^T") : text("[", rows, ", ", columns, "]");
  };
  return text(name_of(result), "[", m, ", ", n, "] = ", name_of(operands), operand(m, k, transpose_a), " ", operand(k, n, transpose_b),
              bias ? " + bias" : "",
              epilogue == Epilogue::bias_gradient ? ", with the bias gradient"
              : epilogue == Epilogue::gelu        ? ", gelu"
              : epilogue == Epilogue::none        ? ""
                                                  : ", gradient of gelu",
              by_pointers ? ", a batch by pointers" : "");
}

CublasLt::CublasLt() { check(cublasLtCreate(&handle_), "cuBLASLt cannot start"); }

CublasLt::~CublasLt() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

const std::unique_ptr<CublasLt::Plan>& CublasLt::plan(const ProductKey& key) {
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;

  auto made = std::make_unique<Plan>();
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  made->operation.reset(operation);
  // Of the transposed equation: the library's first operand is our b.
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(key)));
  if (key.epilogue == Epilogue::bias_gradient || (key.epilogue == Epilogue::gelu && key.bias))
    set(made->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned_to_16);
  if (keeps_pre_activation(key.epilogue)) {  // its type is the result's unless told otherwise
    set(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
    set(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned_to_16);
  }
  made->a = make_layout(key.operands, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k, key.leading_a, key.by_pointers);
  made->b = make_layout(key.operands, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n, key.leading_b, key.by_pointers);
  made->d = make_layout(key.result, key.m, key.n, key.leading_d, key.by_pointers);
  if (key.by_pointers) made->set_batch(typical_batch);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "a preference of products");
  const Preference owner(preference);
  set(owner, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // Partial sums in float32, added in one fixed order by a second kernel; never in place or in the rounded type.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | (key.split_sums ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : 0);
  set(owner, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  set(owner, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.alignment_b));
  set(owner, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.alignment_a));
  set(owner, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.alignment_c));
  set(owner, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.alignment_d));

  cublasLtMatmulHeuristicResult_t best{};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, made->operation.get(), made->b.get(), made->a.get(), made->d.get(),
                                                               made->d.get(), preference, 1, &best, &results);
  // An epilogue that the library does not know for these types is refused as a wrong value by some of its versions.
  const bool refused = status == CUBLAS_STATUS_NOT_SUPPORTED || (key.epilogue != Epilogue::none && status == CUBLAS_STATUS_INVALID_VALUE);
  if (!refused) check(status, text("an algorithm for ", key.to_string()));
  made->found = status == CUBLAS_STATUS_SUCCESS && results > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  made->algorithm = best.algo;
  // Chosen for one number of matrices, run with any: a number that it does not take must not end a run in the middle.
  for (int32_t count = 1; key.by_pointers && made->found && count <= largest_matrix_list; ++count)
    made->found = made->takes(handle_, count);
  return plans_.emplace(key, std::move(made)).first->second;
}

bool CublasLt::supports(const ProductKey& key) {
  const std::lock_guard lock(mutex_);
  return plan(key)->found;
}

void CublasLt::run(const ProductKey& key, const ProductAddresses& addresses, double alpha, double beta, void* workspace,
                   cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Plan& chosen = *plan(key);
  if (!chosen.found) throw DeviceError(text("cuBLASLt has no algorithm for ", key.to_string()));
  if (key.by_pointers) chosen.set_batch(addresses.batch);
  if (key.bias) set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses.bias);
  if (key.epilogue == Epilogue::bias_gradient) set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses.bias_gradient);
  if (keeps_pre_activation(key.epilogue)) set(chosen.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, addresses.pre_activation);
  const auto scale = static_cast<float>(alpha), keep = static_cast<float>(beta);
  // With beta == 0 the library does not read c, but wants an address that could be read.
  const void* c = beta == 0.0 ? addresses.d : addresses.c;
  check(cublasLtMatmul(handle_, chosen.operation.get(), &scale, addresses.b, chosen.b.get(), addresses.a, chosen.a.get(), &keep, c,
                       chosen.d.get(), addresses.d, chosen.d.get(), &chosen.algorithm, workspace, static_cast<size_t>(workspace_bytes),
                       stream),
        text("product ", key.to_string()));
}

std::string cublas_lt_version() {
  const size_t version = cublasLtGetVersion();  // 130100: major * 10000 + minor * 100 + patch
  return text(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace dmuon::cuda
