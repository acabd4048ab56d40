// The backward of an embedding without atomics on floats. The n that name each row of a table are brought into order by
// counting (integers, whose sums do not depend on the order), then every row adds its contributions in the order of n:
//
//   count[v]    how many n name row v
//   start[v]    the sum of count before v
//   members     the n that name v, from start[v] on, in the order in which the device got there
//   ordered     the same in the order of n: each takes the place after those smaller than itself
//
// A row with more than `segment` members, as frequent words have, is added in segments of that many by a block each, and the
// segments' sums in their order. So the bits depend on the members of a row alone. Segment j of row v has number
// start[v] / (segment / 2) + j: a row of c > segment members has at most c / (segment / 2) segments, so no two share a number.
//
// Cost: a few integers per n and per row, then one read of d_output and one write of every row (accumulating: read and write of
// the named rows). For 50257 rows of 768 floats and 16384 tokens in bfloat16: 25 MB read, 154 MB written, under 1 MB for the
// order. Ordering compares within a row's members, 32 at a time: at most N^2 comparisons when all n name one row.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/dropout.h"
#include "backend/cuda/elements.h"
#include "dmuon/core/checked.h"

namespace dmuon::cuda {
namespace {

constexpr unsigned threads = 256;
constexpr unsigned scan_threads = 1024;
constexpr unsigned warp = 32;
constexpr int32_t segment = 64;

__device__ inline int64_t my_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__global__ void count_members_kernel(const int32_t* indices, int64_t n, int32_t* count) {
  if (my_index() < n) atomicAdd(count + indices[my_index()], 1);
}

// start[v] = count[0] + ... + count[v - 1], in one block: a thread adds a range of rows, the ranges are added up in order.
__global__ void start_of_members_kernel(const int32_t* count, int64_t rows, int32_t* start) {
  DMUON_SHARED(int32_t, before, scan_threads);
  const int64_t range = (rows + scan_threads - 1) / scan_threads, begin = std::min(threadIdx.x * range, rows);
  const int64_t end = std::min(begin + range, rows);
  int32_t sum = 0;
  for (int64_t v = begin; v < end; ++v) sum += count[v];
  before[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned by = 1; by < scan_threads; by *= 2) {
    const int32_t added = threadIdx.x >= by ? before[threadIdx.x - by] : 0;
    __syncthreads();
    before[threadIdx.x] += added;
    __syncthreads();
  }
  int32_t at = before[threadIdx.x] - sum;
  for (int64_t v = begin; v < end; ++v) {
    start[v] = at;
    at += count[v];
  }
}

__global__ void collect_members_kernel(const int32_t* indices, int64_t n, const int32_t* start, int32_t* taken, int32_t* members) {
  if (my_index() >= n) return;
  const int32_t v = indices[my_index()];
  members[start[v] + atomicAdd(taken + v, 1)] = static_cast<int32_t>(my_index());
}

// A warp takes an n: one that names a frequent row meets many.
__global__ void order_members_kernel(const int32_t* indices, int64_t n, const int32_t* start, const int32_t* count, const int32_t* members,
                                     int32_t* ordered) {
  const int64_t mine = my_index() / warp;
  if (mine >= n) return;
  const int32_t v = indices[mine], first = start[v], found = count[v], lane = static_cast<int32_t>(threadIdx.x % warp);
  int32_t smaller = 0;
  for (int32_t i = lane; i < found; i += static_cast<int32_t>(warp)) smaller += members[first + i] < mine;
  for (int by = 16; by > 0; by /= 2) smaller += __shfl_xor_sync(~0u, smaller, by);
  if (lane == 0) ordered[first + smaller] = static_cast<int32_t>(mine);
}

__device__ inline int64_t first_segment(int32_t start) { return start / (segment / 2); }
__device__ inline int32_t segments_of(int32_t members) { return (members + segment - 1) / segment; }

// Pack k of the sum of d_output over `count` members, one after another.
template <class T, bool aligned>
__device__ inline Pack<T> sum_of_members(const T* d_output, const int32_t* members, int32_t count, int64_t k, int64_t columns,
                                         const Dropout& dropout) {
  constexpr int width = Pack<T>::size;
  Pack<T> sum{};
#pragma unroll 4
  for (int32_t i = 0; i < count; ++i) {
    const int64_t row = members[i] * columns;
    const Pack<T> d = load_pack<T, aligned>(d_output + row, k, columns);
    const DropoutFactors factor(dropout, row + k * width);
    for (int j = 0; j < width; ++j)
      if (inside<T, aligned>(k, j, columns)) sum.at[j] += factor(j) * d.at[j];
  }
  return sum;
}

// A block takes the segment of its number, if there is one: the member in the middle of it is that of this row.
// sums: [numbers][packs * width].
template <class T, bool aligned>
__global__ void segment_sums_kernel(const T* d_output, const int32_t* indices, const int32_t* start, const int32_t* count,
                                    const int32_t* ordered, float* sums, int64_t columns, Dropout dropout) {
  constexpr int width = Pack<T>::size;
  const int64_t number = blockIdx.x, packs = packs_of<T>(columns);
  const int32_t v = indices[ordered[(number + 1) * (segment / 2) - 1]], members = count[v];
  const int64_t j = number - first_segment(start[v]);
  if (members <= segment || j < 0 || j >= segments_of(members)) return;
  const int32_t begin = static_cast<int32_t>(j) * segment, length = members - begin < segment ? members - begin : segment;
  for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
    const Pack<T> sum = sum_of_members<T, aligned>(d_output, ordered + start[v] + begin, length, k, columns, dropout);
    for (int i = 0; i < width; ++i) sums[(number * packs + k) * width + i] = sum.at[i];
  }
}

// A block takes a row of the table; a frequent one has the sums of its segments.
template <class T, bool aligned>
__global__ void embedding_backward_kernel(const T* d_output, const int32_t* start, const int32_t* count, const int32_t* ordered,
                                          const float* sums, float* d_table, int64_t columns, bool accumulate, Dropout dropout) {
  constexpr int width = Pack<T>::size;
  const int64_t v = blockIdx.x, packs = packs_of<T>(columns);
  const int32_t members = count[v], first = start[v];
  if (accumulate && members == 0) return;
  float* const out = d_table + v * columns;
  for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
    Pack<T> sum{};
    if (members <= segment) {
      sum = sum_of_members<T, aligned>(d_output, ordered + first, members, k, columns, dropout);
    } else {
      const int64_t begin = first_segment(first), end = begin + segments_of(members);
#pragma unroll 4
      for (int64_t number = begin; number < end; ++number)
        for (int j = 0; j < width; ++j) sum.at[j] += sums[(number * packs + k) * width + j];
    }
    // The table is float32 whatever T: its 16 bytes are four elements.
    for (int part = 0; part < width / 4; ++part) {
      Pack<float> total;
      const int64_t place = k * (width / 4) + part;
      if (accumulate) total = load_pack<float, aligned>(out, place, columns);
      for (int j = 0; j < 4; ++j) total.at[j] = accumulate ? total.at[j] + sum.at[part * 4 + j] : sum.at[part * 4 + j];
      store_pack<float, aligned>(out, place, columns, total);
    }
  }
}

}  // namespace

void EmbeddingLoss::embedding_backward(Stream& stream, const EmbeddingBackward& g) {
  constexpr const char* name = "embedding_backward";
  const int64_t n = g.d_output.rows(), columns = g.d_output.size(-1);
  if (n > 0x7fffffff)
    throw DeviceError(text("kernel ", name, " numbers its rows in 32 bits, found ", g.d_output.to_string(), ": split the batch"));
  const auto rows_of = [](const Tensor& table) { return table.defined() ? table.rows() : 0; };
  const int64_t rows = std::max(rows_of(g.d_token_table), rows_of(g.d_position_table));
  const Tensor scratch = backend_.workspace(3 * rows + 2 * n, DType::int32, "order of an embedding backward");
  const int64_t segments = n / (segment / 2);  // at most; a row of sums has room for its last pack
  const Tensor sums = backend_.workspace(segments * round_up(columns, 8), DType::float32, "frequent rows of an embedding backward");
  backend_.enqueue(
      stream, name, 0, {g.tokens, g.positions, g.d_output, g.d_token_table, g.d_position_table, scratch, sums}, [&](cudaStream_t handle) {
        const auto add = [&](const Tensor& indices, const Tensor& table, bool accumulate) {
          if (!table.defined() || table.elements() == 0) return;
          const int64_t table_rows = table.rows();
          const int32_t* index = elements_of<int32_t>(indices);
          const int64_t named = index ? n : 0;
          int32_t *count = scratch.data<int32_t>(), *taken = count + table_rows, *start = taken + table_rows;
          int32_t *members = start + table_rows, *ordered = members + n;
          check(cudaMemsetAsync(count, 0, static_cast<size_t>(2 * table_rows) * sizeof(int32_t), handle),
                "counts of an embedding backward");
          const dim3 blocks = grid_of(name, (named + threads - 1) / threads);
          launch({"count_members", blocks, dim3(threads), 0, handle}, count_members_kernel, index, n, count);
          launch({"start_of_members", dim3(1), dim3(scan_threads), 0, handle}, start_of_members_kernel, count, table_rows, start);
          launch({"collect_members", blocks, dim3(threads), 0, handle}, collect_members_kernel, index, n, start, taken, members);
          launch({"order_members", grid_of(name, (named * warp + threads - 1) / threads), dim3(threads), 0, handle}, order_members_kernel,
                 index, n, start, count, members, ordered);
          const bool aligned = packs_are_aligned(columns, {g.d_output, table});
          with_access(name, g.d_output, aligned, [&](auto access) {
            using T = typename decltype(access)::Element;
            constexpr bool at_once = decltype(access)::aligned;
            const T* const d_output = elements_of<T>(g.d_output);
            const Dropout dropout = dropout_of(g.dropout, g.d_output.elements());
            const dim3 along_columns(threads_for(packs_of<T>(columns), threads));
            launch({"segment_sums", grid_of(name, named / (segment / 2)), along_columns, 0, handle}, segment_sums_kernel<T, at_once>,
                   d_output, index, start, count, ordered, elements_of<float>(sums), columns, dropout);
            launch({name, grid_of(name, table_rows), along_columns, 0, handle}, embedding_backward_kernel<T, at_once>, d_output, start,
                   count, ordered, elements_of<float>(sums), table.data<float>(), columns, accumulate, dropout);
          });
        };
        add(g.tokens, g.d_token_table, g.accumulate_token_table);
        add(g.positions, g.d_position_table, g.accumulate_position_table);
      });
}

}  // namespace dmuon::cuda
