#include "comm/reduction.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/vector_sum.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t block = 1024;  // accumulators stay in the first-level cache

template <class A>
A maximum(A a, A b) {
  return (a < b || b != b) ? b : a;
}
template <class A>
A minimum(A a, A b) {
  return (b < a || b != b) ? b : a;
}

// T as stored, A as accumulated, R as returned.
template <class T, class A, class R>
void reduce(ReduceOperation operation, std::span<const void* const> sources, int64_t elements, R* result, bool accumulate,
            std::span<void* const> copies) {
  A sum[block];
  for (int64_t first = 0; first < elements; first += block) {
    const int64_t count = std::min(block, elements - first);
    for (size_t s = 0; s < sources.size(); ++s) {
      const T* source = static_cast<const T*>(sources[s]) + first;
      if (s == 0) {
        for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(source[i]);
      } else if (operation == ReduceOperation::sum) {
        for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(sum[i] + static_cast<A>(source[i]));
      } else if (operation == ReduceOperation::maximum) {
        for (int64_t i = 0; i < count; ++i) sum[i] = maximum(sum[i], static_cast<A>(source[i]));
      } else {
        for (int64_t i = 0; i < count; ++i) sum[i] = minimum(sum[i], static_cast<A>(source[i]));
      }
    }
    R* out = result + first;
    if (accumulate) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<R>(static_cast<A>(out[i]) + sum[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<R>(sum[i]);
    }
    for (void* copy : copies) std::memcpy(static_cast<R*>(copy) + first, out, static_cast<size_t>(count) * sizeof(R));
  }
}

}  // namespace

void check_reducible(const char* name, DType dtype, ReduceOperation operation) {
  if (dtype == DType::uint8 && operation == ReduceOperation::sum)
    throw ShapeError(text(name, " cannot sum ", dmuon::name_of(dtype), " elements, which have maximum and minimum only; use int32"));
}

void reduce_in_order(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                     std::span<void* const> copies) {
  const ReduceOperation operation = reduction.operation;
  if (operation == ReduceOperation::sum && (reduction.dtype == DType::float32 || reduction.dtype == DType::bfloat16)) {
    const int64_t tiled = elements / vector_sum_tile * vector_sum_tile;
    sum_vectors(reduction, sources, tiled, result, accumulate, copies);
    if (tiled == elements) return;
    if (tiled > 0) {
      std::vector<const void*> rest;
      std::vector<void*> rest_copies;
      for (const void* source : sources) rest.push_back(static_cast<const char*>(source) + tiled * size_of(reduction.dtype));
      for (void* copy : copies) rest_copies.push_back(static_cast<char*>(copy) + tiled * size_of(reduction.result));
      return reduce_in_order(reduction, rest, elements - tiled, static_cast<char*>(result) + tiled * size_of(reduction.result), accumulate,
                             rest_copies);
    }
  }
  const auto as = [&]<class T, class A>() { reduce<T, A, T>(operation, sources, elements, static_cast<T*>(result), accumulate, copies); };
  switch (reduction.dtype) {
    case DType::float32:
      return as.operator()<float, float>();
    case DType::float64:
      return as.operator()<double, double>();
    case DType::bfloat16:
      if (reduction.result == DType::float32)
        return reduce<bfloat16, float, float>(operation, sources, elements, static_cast<float*>(result), accumulate, copies);
      return as.operator()<bfloat16, float>();
    case DType::float16:
      return as.operator()<float16, float>();
    // Unsigned, so that sums wrap instead of being undefined; order matters to maximum and minimum only.
    case DType::int64:
      return operation == ReduceOperation::sum ? as.operator()<uint64_t, uint64_t>() : as.operator()<int64_t, int64_t>();
    case DType::int32:
      return operation == ReduceOperation::sum ? as.operator()<uint32_t, uint32_t>() : as.operator()<int32_t, int32_t>();
    case DType::int16:
      return operation == ReduceOperation::sum ? as.operator()<uint16_t, uint16_t>() : as.operator()<int16_t, int16_t>();
    case DType::int8:
      return operation == ReduceOperation::sum ? as.operator()<uint8_t, uint8_t>() : as.operator()<int8_t, int8_t>();
    case DType::uint8:
      return as.operator()<uint8_t, uint8_t>();
  }
}

}  // namespace dmuon
