#include "backend/cuda/attention_task.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/kernel_flops.h"

namespace dmuon::cuda {
namespace {

constexpr int64_t most_depth = 256;
constexpr int lanes_of_row = 8;

// delta[b, h, t] = sum over D of d_output * output: eight threads take a row.
template <class T, bool aligned>
__global__ void attention_delta_kernel(const T* output, const T* d_output, float* delta, int64_t rows, int64_t queries, int64_t heads,
                                       int64_t D) {
  const int64_t row = blockIdx.x * (attention_threads / lanes_of_row) + threadIdx.x / lanes_of_row;
  float sum = 0;
  for (int64_t k = threadIdx.x % lanes_of_row; row < rows && k < packs_of<T>(D); k += lanes_of_row) {
    const Pack<T> o = load_pack<T, aligned>(output + row * D, k, D), d = load_pack<T, aligned>(d_output + row * D, k, D);
    for (int i = 0; i < Pack<T>::size; ++i) sum += o.at[i] * d.at[i];
  }
  sum = warp_sum<lanes_of_row>(sum);
  const int64_t h = row % heads, t = row / heads % queries, b = row / heads / queries;
  if (row < rows && threadIdx.x % lanes_of_row == 0) delta[(b * heads + h) * queries + t] = sum;
}

// The new keys and values of every sequence behind those that it holds; `row` elements a position.
template <class T>
__global__ void append_keys_kernel(AttentionForwardTask<T> a, const T* new_key, const T* new_value, T* key, T* value, int64_t row) {
  const int64_t i = blockIdx.x * int64_t{attention_threads} + threadIdx.x, of_sequence = a.queries * row;
  if (i >= a.batch * of_sequence) return;
  const int64_t b = i / of_sequence, at = (b * a.keys + a.key_offsets[b]) * row + i % of_sequence;
  key[at] = new_key[i];
  value[at] = new_value[i];
}

void check_depth(const char* kernel, const Tensor& query) {
  if (query.size(3) <= most_depth) return;
  throw DeviceError(text("kernel ", kernel, " of the CUDA backend takes heads of at most ", most_depth, " elements, found ", query.size(3),
                         " in the query ", query.to_string(), ": use more heads of smaller size"));
}

template <class T>
AttentionTask<T> task_of(const AttentionForward& f, bool aligned) {
  AttentionTask<T> a{};
  a.query = elements_of<T>(f.query), a.key = elements_of<T>(f.key), a.value = elements_of<T>(f.value);
  a.output = elements_of<T>(f.output), a.log_sum_exp = elements_of<float>(f.log_sum_exp);
  a.batch = f.query.size(0), a.queries = f.query.size(1), a.heads = f.query.size(2), a.D = static_cast<int>(f.query.size(3));
  a.keys = f.key.size(1), a.key_heads = f.key.size(2);
  a.causal = f.causal, a.key_offset = f.key_offset, a.aligned = aligned;
  a.scale = static_cast<float>(f.scale);
  a.dropout = dropout_of(f.dropout, 1);
  return a;
}

// The task of the `count` sequences from `first`, with their own offsets.
template <class T>
AttentionForwardTask<T> with_offsets(AttentionForwardTask<T> a, const AttentionForward& f, int64_t first, int64_t count) {
  const int64_t of_query = first * a.queries * a.heads * a.D, of_key = first * a.keys * a.key_heads * a.D;
  a.batch = count;
  a.query += of_query, a.output += of_query, a.key += of_key, a.value += of_key;
  if (a.log_sum_exp) a.log_sum_exp += first * a.heads * a.queries;
  a.dropout.first_sequence += static_cast<uint64_t>(first);
  a.own_offsets = true;
  for (int64_t i = 0; i < count; ++i) a.key_offsets[i] = static_cast<int32_t>(f.key_offsets[static_cast<size_t>(first + i)]);
  return a;
}

template <class T>
void append_keys(const AttentionForwardTask<T>& a, const AttentionForward& f, int64_t first, cudaStream_t stream) {
  const int64_t row = a.key_heads * a.D, elements = a.batch * a.queries * row, from = first * a.queries * row, to = first * a.keys * row;
  launch({"attention_append", grid_of("attention_append", (elements + attention_threads - 1) / attention_threads), dim3(attention_threads),
          0, stream},
         append_keys_kernel<T>, a, elements_of<T>(f.new_key) + from, elements_of<T>(f.new_value) + from, elements_of<T>(f.key) + to,
         elements_of<T>(f.value) + to, row);
}

void attend(const AttentionForwardTask<float>& a, cudaStream_t stream) { attention_forward_float32(a, stream); }
void attend(const AttentionForwardTask<__nv_bfloat16>& a, cudaStream_t stream) { attention_forward_bfloat16(a, stream); }

}  // namespace

void Attention::forward(Stream& stream, const AttentionForward& f) {
  constexpr const char* name = "attention_forward";
  check_depth(name, f.query);
  backend_.enqueue(stream, name, flops_of(f), {f.query, f.key, f.value, f.output, f.log_sum_exp, f.new_key, f.new_value},
                   [&](cudaStream_t handle) {
                     if (f.query.elements() == 0) return;
                     const bool aligned = packs_are_aligned(f.query.size(3), {f.query, f.key, f.value, f.output});
                     with_element_type(name, f.query, [&](auto zero) {
                       using T = decltype(zero);
                       const AttentionForwardTask<T> task{task_of<T>(f, aligned), false, {}};
                       if (f.key_offsets.empty()) return attend(task, handle);
                       for (int64_t first = 0; first < task.batch; first += task.most_offsets) {
                         const auto part = with_offsets(task, f, first, std::min(task.batch - first, task.most_offsets));
                         if (f.new_key.defined()) append_keys(part, f, first, handle);
                         attend(part, handle);
                       }
                     });
                   });
}

void Attention::backward(Stream& stream, const AttentionBackward& g) {
  constexpr const char* name = "attention_backward";
  const AttentionForward& f = g.forward;
  check_depth(name, f.query);
  const int64_t batch = f.query.size(0), queries = f.query.size(1), heads = f.query.size(2), D = f.query.size(3);
  const Tensor delta = backend_.workspace(batch * heads * queries, DType::float32, "row sums of an attention backward");
  backend_.enqueue(
      stream, name, flops_of(g), {f.query, f.key, f.value, f.output, f.log_sum_exp, g.d_output, g.d_query, g.d_key, g.d_value, delta},
      [&](cudaStream_t handle) {
        if (f.key.elements() == 0) return;
        const bool aligned = packs_are_aligned(D, {f.query, f.key, f.value, f.output, g.d_output, g.d_query, g.d_key, g.d_value});
        with_access(name, f.query, aligned, [&](auto access) {
          using T = typename decltype(access)::Element;
          AttentionTask<T> task = task_of<T>(f, aligned);
          task.d_output = elements_of<T>(g.d_output), task.d_query = elements_of<T>(g.d_query);
          task.d_key = elements_of<T>(g.d_key), task.d_value = elements_of<T>(g.d_value);
          task.delta = elements_of<float>(delta);
          const int64_t rows = batch * queries * heads, rows_of_block = attention_threads / lanes_of_row;
          launch({"attention_delta", grid_of("attention_delta", (rows + rows_of_block - 1) / rows_of_block), dim3(attention_threads), 0,
                  handle},
                 attention_delta_kernel<T, decltype(access)::aligned>, elements_of<T>(f.output), task.d_output, elements_of<float>(delta),
                 rows, queries, heads, D);
          if constexpr (std::is_same_v<T, float>)
            attention_backward_float32(task, handle);
          else
            attention_backward_bfloat16(task, handle);
        });
      });
}

}  // namespace dmuon::cuda
