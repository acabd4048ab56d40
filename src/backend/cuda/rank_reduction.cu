#include "backend/cuda/rank_reduction.h"

#include <algorithm>
#include <type_traits>

#include "backend/cuda/device_language.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

constexpr unsigned block = 256;

// Terms of type T are added as A; integers as unsigned ones, whose sums wrap.
template <class A, class T>
__device__ A widen(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else if constexpr (std::is_same_v<T, __half>)
    return __half2float(value);
  else
    return static_cast<A>(value);
}

template <class R, class A>
__device__ R narrow(A value) {
  if constexpr (std::is_same_v<R, __nv_bfloat16>)
    return __float2bfloat16_rn(value);
  else if constexpr (std::is_same_v<R, __half>)
    return __float2half_rn(value);
  else
    return static_cast<R>(value);
}

template <class A>
__device__ A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <class A>
__device__ A combine(A a, A b, RankOperation operation) {
  if (operation == RankOperation::sum) return add(a, b);
  if (operation == RankOperation::maximum) return (a < b || b != b) ? b : a;
  return (b < a || b != b) ? b : a;
}

// `width` elements, in accesses of at most 16 bytes: that is what aligned() promises, also where terms of 16 bits are added into
// twice as many bytes of float32.
template <class T, int width>
struct alignas(std::min<size_t>(width * sizeof(T), 16)) Pack {
  T values[width];
};

struct Order {
  int64_t stride;  // elements
  int rank, ranks;
  RankOperation operation;
  bool accumulate;
};

template <class T, class A, class R, int width>
__global__ void reduce_kernel(const T* own, const T* terms, R* result, Order order, int64_t packs) {
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  A sum[width] = {};
  for (int r = 0; r < order.ranks; ++r) {
    const T* source = r == order.rank ? own : terms + r * order.stride;
    const Pack<T, width> next = reinterpret_cast<const Pack<T, width>*>(source)[pack];
    for (int i = 0; i < width; ++i) sum[i] = r == 0 ? widen<A>(next.values[i]) : combine(sum[i], widen<A>(next.values[i]), order.operation);
  }
  Pack<R, width>& target = reinterpret_cast<Pack<R, width>*>(result)[pack];
  if (order.accumulate) {
    const Pack<R, width> before = target;
    for (int i = 0; i < width; ++i) sum[i] = add(widen<A>(before.values[i]), sum[i]);
  }
  Pack<R, width> out;
  for (int i = 0; i < width; ++i) out.values[i] = narrow<R>(sum[i]);
  target = out;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T, class A, class R, int width>
void start(cudaStream_t handle, const T* own, const T* terms, R* result, const Order& order, int64_t elements) {
  const int64_t packs = elements / width;
  launch({"reduce_in_rank_order", dim3(static_cast<unsigned>((packs + block - 1) / block)), dim3(block), 0, handle},
         reduce_kernel<T, A, R, width>, own, terms, result, order, packs);
}

template <class T, class A, class R>
void reduce(cudaStream_t handle, const RankReduction& a) {
  const auto* own = static_cast<const T*>(a.own.raw());
  const auto* terms = static_cast<const T*>(a.terms.raw());
  auto* result = static_cast<R*>(a.result.raw());
  const Order order{a.stride, a.rank, a.ranks, a.operation, a.accumulate};
  const int64_t elements = a.own.elements();
  constexpr int width = 16 / sizeof(T);
  int64_t packed = 0;
  if (aligned(own) && aligned(terms) && aligned(result) && a.stride % width == 0 && elements >= width) {
    packed = elements / width * width;
    start<T, A, R, width>(handle, own, terms, result, order, packed);
  }
  if (packed < elements) start<T, A, R, 1>(handle, own + packed, terms + packed, result + packed, order, elements - packed);
}

}  // namespace

void reduce_in_rank_order(CudaBackend& backend, Stream& stream, const RankReduction& a) {
  const bool widened = a.own.dtype() == DType::bfloat16 && a.result.dtype() == DType::float32;
  if (a.result.elements() != a.own.elements() || (a.result.dtype() != a.own.dtype() && !widened) ||
      (a.ranks > 1 && (a.terms.dtype() != a.own.dtype() || a.terms.elements() < (a.ranks - 1) * a.stride + a.own.elements())))
    throw ShapeError(text("reduce_in_rank_order of ", a.own.to_string(), " and ", a.ranks, " rows of ", a.stride, " in ",
                          a.terms.to_string(), " into ", a.result.to_string()));
  backend.enqueue(stream, "reduce_in_rank_order", 0, {a.own, a.terms, a.result}, [&](cudaStream_t handle) {
    switch (a.own.dtype()) {
      case DType::float32:
        return reduce<float, float, float>(handle, a);
      case DType::float64:
        return reduce<double, double, double>(handle, a);
      case DType::bfloat16:
        return widened ? reduce<__nv_bfloat16, float, float>(handle, a) : reduce<__nv_bfloat16, float, __nv_bfloat16>(handle, a);
      case DType::float16:
        return reduce<__half, float, __half>(handle, a);
      case DType::int64:
        return reduce<int64_t, int64_t, int64_t>(handle, a);
      case DType::int32:
        return reduce<int32_t, int32_t, int32_t>(handle, a);
      case DType::int16:
        return reduce<int16_t, int16_t, int16_t>(handle, a);
      case DType::int8:
        return reduce<int8_t, int8_t, int8_t>(handle, a);
      case DType::uint8:
        return reduce<uint8_t, uint8_t, uint8_t>(handle, a);
    }
  });
}

}  // namespace dmuon::cuda
