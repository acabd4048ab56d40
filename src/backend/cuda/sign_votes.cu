// One-bit votes: counts and majorities over words of signs, and the numbers that a sum of a library combines. No floats here but
// those that hold small integers.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/optimizer_elements.h"
#include "backend/cuda/sign_words.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

using Word = SignWord;
constexpr int threads = sign_threads;
constexpr int most_pointers = 256;  // of one launch

// ----------------------------------------------------------------------------------------------------------------- counting
// A count of 64 elements at once is a set of words, plane j holding bit j of every count. Planes start at 2^top - threshold,
// so that plane `top` is set once the threshold is reached.

// Words by worker, or planes by node.
struct Pointers {
  const Word* at[most_pointers];
  int count;
  int again;  // this one counts twice; -1: none
};
Pointers pointers_of(const std::vector<Tensor>& tensors, size_t begin, size_t end) {
  Pointers pointers{};
  pointers.count = static_cast<int>(end - begin);
  pointers.again = -1;
  for (size_t i = begin; i < end; ++i) pointers.at[i - begin] = sign_words_of(tensors[i]);
  return pointers;
}

template <int planes>
__device__ void add(Word (&count)[planes], Word in) {
#pragma unroll
  for (int j = 0; j < planes; ++j) {
    const Word carry = count[j] & in;
    count[j] ^= in;
    in = carry;
  }
}
template <int planes>
__device__ void add_all(Word (&count)[planes], const Pointers& inputs, int64_t w) {
#pragma unroll 8
  for (int i = 0; i < inputs.count; ++i) add(count, inputs.at[i][w]);
  if (inputs.again >= 0) add(count, inputs.at[inputs.again][w]);
}

__device__ int64_t word_of_thread() { return static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; }

// `weight`: the voters, odd by naming the tie-breaker again; its majority reaches plane planes - 1.
template <int planes>
__global__ void vote_kernel(Pointers inputs, Word* result, int64_t words, int64_t any_words, int weight) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  if (w < any_words) {
    Word any = 0;
    for (int i = 0; i < inputs.count; ++i) any |= inputs.at[i][w];
    result[w] = any;
    return;
  }
  const int start = (1 << (planes - 1)) - (weight / 2 + 1);
  Word count[planes];
#pragma unroll
  for (int j = 0; j < planes; ++j) count[j] = (start >> j & 1) != 0 ? ~Word{0} : Word{0};
  add_all(count, inputs, w);
  result[w] = count[planes - 1];
}

// out: plane after plane of `words` words, the first `out_planes` of the count; further ones are zero.
template <int planes>
__global__ void count_kernel(Pointers inputs, Word* out, int64_t words, int out_planes) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  Word count[planes]{};
  add_all(count, inputs, w);
#pragma unroll
  for (int j = 0; j < planes; ++j)
    if (j < out_planes) out[j * words + w] = count[j];
  for (int j = planes; j < out_planes; ++j) out[j * words + w] = 0;
}

// `pointers.at[n]`: the planes of node n, plane_counts[n] of them.
struct NodePlanes {
  Pointers nodes;
  unsigned char plane_counts[most_pointers];
};
constexpr int most_planes = 33;
__global__ void vote_counts_kernel(NodePlanes in, Word* result, int64_t words, int64_t any_words, int64_t threshold, int top) {
  const int64_t w = word_of_thread();
  if (w >= words) return;
  if (w < any_words) {
    Word any = 0;
    for (int n = 0; n < in.nodes.count; ++n)
      for (int j = 0; j < in.plane_counts[n]; ++j) any |= in.nodes.at[n][j * words + w];
    result[w] = any;
    return;
  }
  // In local memory, since only the launch knows how many planes there are; it runs once per step, on few words.
  Word count[most_planes];
  const int64_t start = (int64_t{1} << top) - threshold;
  for (int j = 0; j <= top; ++j) count[j] = (start >> j & 1) != 0 ? ~Word{0} : Word{0};
  for (int n = 0; n < in.nodes.count; ++n) {
    Word carry = 0;
    for (int j = 0; j <= top; ++j) {
      const Word term = j < in.plane_counts[n] ? in.nodes.at[n][j * words + w] : 0;
      const Word half = count[j] ^ term, next = (count[j] & term) | (half & carry);
      count[j] = half ^ carry;
      carry = next;
    }
  }
  result[w] = count[top];
}

// -------------------------------------------------------------------------------------------------- numbers that a sum combines

// Eight elements, a byte of signs, for each thread.
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight {
  T v[8];
};
template <class T>
__global__ void expand_kernel(const unsigned char* bytes, T* out, int64_t count, int64_t any_bytes, int weight, bool at_once) {
  const int64_t i = word_of_thread();
  if (i >= count) return;
  const int set = i < any_bytes ? 1 : weight, clear = i < any_bytes ? 0 : -weight;
  const int signs = bytes[i];
  Eight<T> eight;
  for (int j = 0; j < 8; ++j) eight.v[j] = static_cast<T>((signs >> j & 1) != 0 ? set : clear);
  if (at_once) {
    reinterpret_cast<Eight<T>*>(out)[i] = eight;
    return;
  }
  for (int j = 0; j < 8; ++j) out[8 * i + j] = eight.v[j];
}
template <class T>
__global__ void threshold_kernel(const T* in, unsigned char* bytes, int64_t count, bool at_once) {
  const int64_t i = word_of_thread();
  if (i >= count) return;
  Eight<T> eight;
  if (at_once) {
    eight = reinterpret_cast<const Eight<T>*>(in)[i];
  } else {
    for (int j = 0; j < 8; ++j) eight.v[j] = in[8 * i + j];
  }
  int signs = 0;
  for (int j = 0; j < 8; ++j) signs |= (eight.v[j] > 0 ? 1 : 0) << j;
  bytes[i] = static_cast<unsigned char>(signs);
}

template <class T>
bool movable_by_eight(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Eight<T>) == 0;
}

template <class Body>
void with_integers(const Tensor& tensor, const Body& body) {
  if (tensor.dtype() == DType::int8) return body(tensor.data<int8_t>());
  if (tensor.dtype() == DType::int16) return body(tensor.data<int16_t>());
  if (tensor.dtype() == DType::int32) return body(tensor.data<int32_t>());
  throw ShapeError(text("signs as numbers: expected int8, int16 or int32, found ", tensor.to_string()));
}

std::vector<Tensor> with(std::vector<Tensor> tensors, const Tensor& last) {
  tensors.push_back(last);
  return tensors;
}

// The bits of a number.
int bits_in(int64_t value) { return sign_count_planes(value); }

void start_vote(const Pointers& inputs, Word* result, int64_t words, int64_t any_words, cudaStream_t stream) {
  const int weight = inputs.count + (inputs.again >= 0 ? 1 : 0), threshold = weight / 2 + 1;
  const auto start = [&](auto kernel) {
    launch({"vote_signs", blocks_for(words, threads), dim3(threads), 0, stream}, kernel, inputs, result, words, any_words, weight);
  };
  // Plane `top` with 2^top at least the threshold; counts stay below twice the threshold.
  if (threshold <= 1) return start(vote_kernel<1>);
  if (threshold <= 2) return start(vote_kernel<2>);
  if (threshold <= 4) return start(vote_kernel<3>);
  if (threshold <= 8) return start(vote_kernel<4>);
  if (threshold <= 16) return start(vote_kernel<5>);
  start(vote_kernel<9>);
}

void start_count(const Pointers& inputs, Word* out, int64_t words, int out_planes, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch({"count_signs", blocks_for(words, threads), dim3(threads), 0, stream}, kernel, inputs, out, words, out_planes);
  };
  const int planes = bits_in(inputs.count + 1);
  if (planes <= 2) return start(count_kernel<2>);
  if (planes <= 3) return start(count_kernel<3>);
  if (planes <= 5) return start(count_kernel<5>);
  start(count_kernel<9>);
}

void start_vote_counts(const NodePlanes& in, Word* result, int64_t words, int64_t any_words, int64_t total_weight, cudaStream_t stream) {
  const int64_t threshold = total_weight / 2 + 1;
  const int top = bits_in(threshold - 1);  // the least with 2^top >= threshold
  launch({"vote_counts", blocks_for(words, threads), dim3(threads), 0, stream}, vote_counts_kernel, in, result, words, any_words, threshold,
         top);
}

}  // namespace

void Signs::vote(Stream& stream, const VoteSigns& v) {
  const int64_t words = v.result.elements();
  const size_t workers = v.inputs.size();
  const bool even = workers % 2 == 0;
  if (workers <= most_pointers) {
    backend_.enqueue(stream, "vote_signs", 0, with(v.inputs, v.result), [&](cudaStream_t handle) {
      Pointers inputs = pointers_of(v.inputs, 0, workers);
      if (even) inputs.again = v.tie_breaker;
      start_vote(inputs, sign_words_of(v.result), words, v.any_words, handle);
    });
    return;
  }
  // More than a launch takes: counts of groups of workers, and the vote over those.
  const size_t groups = (workers + most_pointers - 1) / most_pointers;
  VoteCounts counts;
  for (size_t group = 0; group < groups; ++group) {
    const size_t begin = workers * group / groups, end = workers * (group + 1) / groups;
    CountSigns count;
    count.inputs.assign(v.inputs.begin() + static_cast<std::ptrdiff_t>(begin), v.inputs.begin() + static_cast<std::ptrdiff_t>(end));
    const auto tie_breaker = static_cast<size_t>(v.tie_breaker);
    if (even && tie_breaker >= begin && tie_breaker < end) count.twice = static_cast<int>(tie_breaker - begin);
    count.planes = backend_.workspace(bits_in(static_cast<int64_t>(end - begin) + 1) * words, DType::int64, "counts of votes");
    this->count(stream, count);
    counts.planes.push_back(count.planes);
  }
  counts.result = v.result, counts.any_words = v.any_words;
  counts.total_weight = static_cast<int64_t>(workers) + (even ? 1 : 0);
  vote_counts(stream, counts);
}

void Signs::count(Stream& stream, const CountSigns& c) {
  if (c.inputs.size() > most_pointers)
    throw DeviceError(text("count_signs: ", c.inputs.size(), " workers in one call, at most ", most_pointers, "; count them in groups"));
  backend_.enqueue(stream, "count_signs", 0, with(c.inputs, c.planes), [&](cudaStream_t handle) {
    const int64_t words = c.inputs[0].elements();
    if (words == 0) return;
    Pointers inputs = pointers_of(c.inputs, 0, c.inputs.size());
    inputs.again = c.twice;
    start_count(inputs, sign_words_of(c.planes), words, static_cast<int>(c.planes.elements() / words), handle);
  });
}

void Signs::vote_counts(Stream& stream, const VoteCounts& v) {
  if (v.planes.size() > most_pointers)
    throw DeviceError(text("vote_counts: ", v.planes.size(), " nodes in one call, at most ", most_pointers));
  backend_.enqueue(stream, "vote_counts", 0, with(v.planes, v.result), [&](cudaStream_t handle) {
    const int64_t words = v.result.elements();
    if (words == 0) return;
    NodePlanes in{};
    in.nodes = pointers_of(v.planes, 0, v.planes.size());
    for (size_t n = 0; n < v.planes.size(); ++n) in.plane_counts[n] = static_cast<unsigned char>(v.planes[n].elements() / words);
    start_vote_counts(in, sign_words_of(v.result), words, v.any_words, v.total_weight, handle);
  });
}

void Signs::expand(Stream& stream, const ExpandSigns& e) {
  backend_.enqueue(stream, "expand_signs", 0, {e.words, e.out}, [&](cudaStream_t handle) {
    with_integers(e.out, [&](auto* out) {
      using T = std::remove_pointer_t<decltype(out)>;
      const int64_t bytes = 8 * e.words.elements();
      launch({"expand_signs", blocks_for(bytes, threads), dim3(threads), 0, handle}, expand_kernel<T>,
             reinterpret_cast<const unsigned char*>(sign_words_of(e.words)), out, bytes, 8 * e.any_words, e.weight, movable_by_eight(out));
    });
  });
}

void Signs::threshold(Stream& stream, const ThresholdSigns& t) {
  backend_.enqueue(stream, "threshold_signs", 0, {t.in, t.words}, [&](cudaStream_t handle) {
    with_integers(t.in, [&](auto* in) {
      using T = std::remove_pointer_t<decltype(in)>;
      const int64_t bytes = 8 * t.words.elements();
      launch({"threshold_signs", blocks_for(bytes, threads), dim3(threads), 0, handle}, threshold_kernel<T>, in,
             reinterpret_cast<unsigned char*>(sign_words_of(t.words)), bytes, movable_by_eight(in));
    });
  });
}
}  // namespace dmuon::cuda
