// Sums, counts and conversions of whole tensors. Reductions to float64 have one order each, that of chunk_sum.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_passes.h"

namespace dmuon::cuda {
namespace {

constexpr int64_t sum_chunk = 16384;  // of Sum and CountNonFinite

// out[c] = sum of the elements of chunk c, or of their squares. A block for every chunk.
template <class T>
__global__ void chunk_sum_kernel(const T* in, double* out, int64_t elements, int64_t chunk, bool squares, bool at_once) {
  double sum = 0.0;
  for_groups(blockIdx.x * chunk, end_of_chunk(elements, chunk), [&](int64_t i, int count) {
    const Four<T> four = load_four(in, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const double x = static_cast<double>(widen(four.v[j]));
      if (j < count) sum += squares ? x * x : x;
    }
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// One block: the sum of `count` numbers.
__global__ void total_kernel(const double* in, double* out, int64_t count) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += sum_threads) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[0] = sum;
}

// Adds to a counter that starts at zero: of whole numbers any order gives the same sum.
template <class T>
__global__ void count_non_finite_kernel(const T* in, unsigned long long* out, int64_t elements, bool at_once) {
  int found = 0;
  for_groups(blockIdx.x * sum_chunk, end_of_chunk(elements, sum_chunk), [&](int64_t i, int count) {
    const Four<T> four = load_four(in, i, count, at_once);
    for (int j = 0; j < 4; ++j) {
      const double x = static_cast<double>(widen(four.v[j]));
      if (j < count && !(x - x == 0.0)) ++found;
    }
  });
  for (int by = 16; by > 0; by /= 2) found += __shfl_xor_sync(~0u, found, by);
  if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(out, static_cast<unsigned long long>(found));
}

template <class From, class To>
__global__ void convert_kernel(const From* in, To* out, int64_t elements, bool at_once) {
  for (int group = 0; group < pass_groups; ++group) {
    const int64_t i = blockIdx.x * pass_elements + 4 * (static_cast<int64_t>(group) * pass_threads + threadIdx.x);
    if (i >= elements) return;
    const int count = static_cast<int>(elements - i < 4 ? elements - i : 4);
    const Four<From> from = load_four(in, i, count, at_once);
    Four<To> to{};
    for (int j = 0; j < 4; ++j) narrow(widen(from.v[j]), to.v[j]);
    store_four(out, i, count, at_once, to);
  }
}

void start_chunk_sums(const Tensor& in, double* out, int64_t chunk, bool squares, const char* name, cudaStream_t stream) {
  with_elements(in, [&](auto* elements) {
    using T = std::remove_pointer_t<decltype(elements)>;
    launch({name, blocks_for(in.elements(), chunk), dim3(sum_threads), 0, stream}, chunk_sum_kernel<T>, elements, out, in.elements(), chunk,
           squares, chunk % 4 == 0 && movable_by_four(elements));
  });
}

}  // namespace

void Optimizer::convert(Stream& stream, const Convert& c) {
  const int64_t elements = c.in.elements();
  backend_.enqueue(stream, "convert", 0, {c.in, c.out}, [&](cudaStream_t handle) {
    if (elements == 0) return;
    if (c.in.dtype() == c.out.dtype())
      return check(cudaMemcpyAsync(c.out.raw(), c.in.raw(), static_cast<size_t>(c.in.bytes()), cudaMemcpyDeviceToDevice, handle),
                   text("conversion of ", c.in.to_string()));
    with_elements(c.in, [&](auto* in) {
      with_elements(c.out, [&](auto* out) {
        using From = std::remove_pointer_t<decltype(in)>;
        using To = std::remove_pointer_t<decltype(out)>;
        if constexpr (!std::is_same_v<From, To>)
          launch({"convert", blocks_for(elements, pass_elements), dim3(pass_threads), 0, handle}, convert_kernel<From, To>, in, out,
                 elements, all_movable(in) && all_movable(out));
      });
    });
  });
}

void Optimizer::square_sums(Stream& stream, const SquareSums& s) {
  backend_.enqueue(stream, "square_sums", 0, {s.in, s.out},
                   [&](cudaStream_t handle) { start_chunk_sums(s.in, s.out.data<double>(), s.chunk, true, "square_sums", handle); });
}

void Optimizer::sum(Stream& stream, const Sum& s) {
  const int64_t chunks = (s.in.elements() + sum_chunk - 1) / sum_chunk;
  const Tensor sums = backend_.workspace(chunks, DType::float64, "chunk sums");
  backend_.enqueue(stream, "sum", 0, {s.in, s.out, sums}, [&](cudaStream_t handle) {
    double* of_chunks = chunks > 0 ? sums.data<double>() : nullptr;
    start_chunk_sums(s.in, of_chunks, sum_chunk, false, "sum", handle);
    launch({"total", dim3(1), dim3(sum_threads), 0, handle}, total_kernel, of_chunks, s.out.data<double>(), chunks);
  });
}

void Optimizer::count_non_finite(Stream& stream, const CountNonFinite& c) {
  backend_.enqueue(stream, "count_non_finite", 0, {c.in, c.out}, [&](cudaStream_t handle) {
    auto* out = reinterpret_cast<unsigned long long*>(c.out.data<int64_t>());
    check(cudaMemsetAsync(out, 0, sizeof *out, handle), "zero of a count");
    with_elements(c.in, [&](auto* in) {
      using T = std::remove_pointer_t<decltype(in)>;
      launch({"count_non_finite", blocks_for(c.in.elements(), sum_chunk), dim3(sum_threads), 0, handle}, count_non_finite_kernel<T>, in,
             out, c.in.elements(), movable_by_four(in));
    });
  });
}

}  // namespace dmuon::cuda
