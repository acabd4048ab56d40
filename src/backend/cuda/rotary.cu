#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/partial_sums.h"
#include "backend/cuda/reductions.h"

namespace dmuon::cuda {
namespace {

constexpr int team_lanes = 8;                // of one head
constexpr int64_t most_teams = 32;           // of a block
constexpr int64_t rows_at_once = 4;          // whose angles a block holds
constexpr int64_t shared_limit = 64 * 1024;  // of one block

// Rows from `first` on that a block holds the angles of. (std::min would take the constant's address, which a device has not.)
__device__ inline int64_t rows_from(int64_t first, int64_t end) { return end - first < rows_at_once ? end - first : rows_at_once; }

// theta^(-2 pair / channels) in the roundings of rotary_frequency() (backend/rotary_angles.h).
__device__ inline float frequency(float theta, int64_t pair, int64_t channels) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(channels);
  return 1.0f / static_cast<float>(pow(static_cast<double>(theta), static_cast<double>(exponent)));
}

template <class T>
struct Rotary {
  const T *input, *weight, *d_output;
  const int32_t* positions;
  T* output;  // the backward's d_input
  float *inverse_deviation, *partials;
  int64_t rows, heads, channels, rows_per_block;
  float theta, epsilon;
  float direction;  // 1; -1 turns back
};

// Where a block's numbers lie in shared memory: frequencies [half], cosines and sines [rows_at_once, half], then column sums.
struct Places {
  int64_t half;
  __host__ __device__ int64_t cosines() const { return half; }
  __host__ __device__ int64_t sines() const { return half + rows_at_once * half; }
  __host__ __device__ int64_t sums() const { return half + 2 * rows_at_once * half; }
};

// Angles are products in float32; cosf and sinf are accurate at any of them. Every thread of the block takes part.
template <class T, class Shared>
__device__ inline void hold_angles(const Rotary<T>& a, Shared& held, int64_t first, int64_t count) {
  const Places places{a.channels / 2};
  __syncthreads();  // frequencies are there; earlier angles are no longer read
  for (int64_t e = threadIdx.x; e < count * places.half; e += blockDim.x) {
    const float angle = static_cast<float>(a.positions[first + e / places.half]) * held[e % places.half];
    held[places.cosines() + e] = cosf(angle);
    held[places.sines() + e] = a.direction * sinf(angle);
  }
  __syncthreads();
}

// A team of lanes takes a head; lane l keeps to the packs l, l + team_lanes ... of the first half and their partners in the
// second, so results may overwrite the input. Heads of a row share its angles.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_teams* team_lanes) rotary_forward_kernel(Rotary<T> a) {
  DMUON_DYNAMIC_SHARED(float, held);
  constexpr int width = Pack<T>::size;
  const int64_t half = a.channels / 2, packs = packs_of<T>(half);
  const Places places{half};
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) held[i] = frequency(a.theta, i, a.channels);
  const int64_t first = blockIdx.x * rows_at_once, count = rows_from(first, a.rows);
  hold_angles(a, held, first, count);
  const int64_t lane = threadIdx.x % team_lanes, team = threadIdx.x / team_lanes, teams = blockDim.x / team_lanes;
  const int64_t heads = count * a.heads;
  for (int64_t around = 0; around < heads; around += teams) {  // equally often in every team: lanes of a warp meet in sums
    const int64_t head = around + team, at = first * a.heads + head;
    const bool mine = head < heads;
    const T* x = a.input + at * a.channels;
    float inverse = 1.0f;
    if (a.weight) {
      float squares = 0;
      for (int64_t k = lane; mine && k < packs; k += team_lanes) {
        const Pack<T> p = load_pack<T, aligned>(x, k, half), q = load_pack<T, aligned>(x + half, k, half);
        for (int i = 0; i < width; ++i) squares += p.at[i] * p.at[i] + q.at[i] * q.at[i];
      }
      inverse = 1.0f / sqrtf(warp_sum<team_lanes>(squares) / static_cast<float>(a.channels) + a.epsilon);
      if (mine && lane == 0 && a.inverse_deviation) a.inverse_deviation[at] = inverse;
    }
    for (int64_t k = lane; mine && k < packs; k += team_lanes) {
      Pack<T> p = load_pack<T, aligned>(x, k, half), q = load_pack<T, aligned>(x + half, k, half);
      if (a.weight) {
        const Pack<T> v = load_pack<T, aligned>(a.weight, k, half), w = load_pack<T, aligned>(a.weight + half, k, half);
        for (int i = 0; i < width; ++i) p.at[i] *= inverse * v.at[i], q.at[i] *= inverse * w.at[i];
      }
      for (int i = 0; i < width; ++i) {
        if (!inside<T, aligned>(k, i, half)) continue;
        const int64_t angle = head / a.heads * half + k * width + i;
        const float c = held[places.cosines() + angle], s = held[places.sines() + angle], first_half = p.at[i];
        p.at[i] = first_half * c - q.at[i] * s;
        q.at[i] = q.at[i] * c + first_half * s;
      }
      store_pack<T, aligned>(a.output + at * a.channels, k, half, p);
      store_pack<T, aligned>(a.output + at * a.channels + half, k, half, q);
    }
  }
}

// With a weight. A block takes rows_per_block rows and every team keeps column sums of its own, which are added in the order of
// the teams at the end. The angles are held with direction -1, so that the forward's formula turns back.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_teams* team_lanes) rotary_backward_kernel(Rotary<T> a) {
  DMUON_DYNAMIC_SHARED(float, held);
  constexpr int width = Pack<T>::size;
  const int64_t half = a.channels / 2, packs = packs_of<T>(half);
  const Places places{half};
  const int64_t lane = threadIdx.x % team_lanes, team = threadIdx.x / team_lanes, teams = blockDim.x / team_lanes;
  const int64_t sums = places.sums() + team * a.channels;
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) held[i] = frequency(a.theta, i, a.channels);
  for (int64_t k = lane; k < packs; k += team_lanes)
    for (int i = 0; i < width; ++i)
      if (k * width + i < half) held[sums + k * width + i] = held[sums + half + k * width + i] = 0.0f;

  const int64_t begin = blockIdx.x * a.rows_per_block, end = std::min(begin + a.rows_per_block, a.rows);
  for (int64_t first = begin; first < end; first += rows_at_once) {
    const int64_t count = rows_from(first, end), heads = count * a.heads;
    hold_angles(a, held, first, count);
    for (int64_t around = 0; around < heads; around += teams) {
      const int64_t head = around + team, at = first * a.heads + head, angles = head / a.heads * half;
      const bool mine = head < heads;
      const T *x = a.input + at * a.channels, *d = a.d_output + at * a.channels;
      const float inverse = mine ? a.inverse_deviation[at] : 0.0f;
      const auto turned_back = [&](int64_t k, Pack<T>& p, Pack<T>& q) {
        p = load_pack<T, aligned>(d, k, half), q = load_pack<T, aligned>(d + half, k, half);
        for (int i = 0; i < width; ++i) {
          if (!inside<T, aligned>(k, i, half)) continue;
          const float c = held[places.cosines() + angles + k * width + i], s = held[places.sines() + angles + k * width + i];
          const float first_half = p.at[i];
          p.at[i] = first_half * c - q.at[i] * s;
          q.at[i] = q.at[i] * c + first_half * s;
        }
      };
      float product = 0;
      for (int64_t k = lane; mine && k < packs; k += team_lanes) {
        Pack<T> p, q;
        turned_back(k, p, q);
        const Pack<T> y = load_pack<T, aligned>(x, k, half), z = load_pack<T, aligned>(x + half, k, half);
        const Pack<T> v = load_pack<T, aligned>(a.weight, k, half), w = load_pack<T, aligned>(a.weight + half, k, half);
        for (int i = 0; i < width; ++i) {
          if (!inside<T, aligned>(k, i, half)) continue;
          const float by_first = p.at[i] * y.at[i] * inverse, by_second = q.at[i] * z.at[i] * inverse;
          product += by_first * v.at[i] + by_second * w.at[i];
          held[sums + k * width + i] += by_first;
          held[sums + half + k * width + i] += by_second;
        }
      }
      const float mean = warp_sum<team_lanes>(product) / static_cast<float>(a.channels);
      for (int64_t k = lane; mine && k < packs; k += team_lanes) {
        Pack<T> p, q;
        turned_back(k, p, q);
        const Pack<T> y = load_pack<T, aligned>(x, k, half), z = load_pack<T, aligned>(x + half, k, half);
        const Pack<T> v = load_pack<T, aligned>(a.weight, k, half), w = load_pack<T, aligned>(a.weight + half, k, half);
        for (int i = 0; i < width; ++i) {
          p.at[i] = inverse * (p.at[i] * v.at[i] - y.at[i] * inverse * mean);
          q.at[i] = inverse * (q.at[i] * w.at[i] - z.at[i] * inverse * mean);
        }
        store_pack<T, aligned>(a.output + at * a.channels, k, half, p);
        store_pack<T, aligned>(a.output + at * a.channels + half, k, half, q);
      }
    }
  }
  if (!a.partials) return;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.channels; c += blockDim.x) {
    float sum = 0;
    for (int64_t t = 0; t < teams; ++t) sum += held[places.sums() + t * a.channels + c];
    a.partials[blockIdx.x * a.channels + c] = sum;
  }
}

// Teams of a block whose column sums, `sums_channels` each, fit beside the angles; DeviceError for heads wider than that.
struct Layout {
  Layout(const char* name, int64_t channels, int64_t sums_channels) {
    const int64_t angles = 4 * Places{channels / 2}.sums();
    teams = sums_channels == 0 ? most_teams : std::min(most_teams, (shared_limit + 8192 - angles) / (4 * sums_channels));
    teams = teams / 4 * 4;  // whole warps
    bytes = angles + 4 * teams * sums_channels;
    if (teams < 4 || bytes > shared_limit + 8192)
      throw DeviceError(text("kernel ", name, " of the CUDA backend takes no heads of ", channels, " channels"));
  }
  int64_t teams, bytes;
  Launch launch_of(const char* name, int64_t blocks, cudaStream_t stream) const {
    return {name, grid_of(name, blocks), dim3(static_cast<unsigned>(teams * team_lanes)), static_cast<size_t>(bytes), stream};
  }
};

template <class T>
Rotary<T> rotary_of(const RotaryForward& f, const Tensor& like) {
  Rotary<T> a{};
  a.input = elements_of<T>(f.input), a.weight = elements_of<T>(f.weight), a.output = elements_of<T>(f.output);
  a.positions = f.positions.data<int32_t>(), a.inverse_deviation = elements_of<float>(f.inverse_deviation);
  a.rows = like.size(0), a.heads = like.size(1), a.channels = like.size(2);
  a.theta = static_cast<float>(f.theta), a.epsilon = static_cast<float>(f.epsilon), a.direction = 1.0f;
  return a;
}

int64_t blocks_of(int64_t rows) { return (rows + rows_at_once - 1) / rows_at_once; }

}  // namespace

void Attention::rotary_forward(Stream& stream, const RotaryForward& f) {
  constexpr const char* name = "rotary_forward";
  backend_.enqueue(stream, name, 0, {f.input, f.positions, f.weight, f.output, f.inverse_deviation}, [&](cudaStream_t handle) {
    const int64_t channels = f.input.size(2);
    with_access(name, f.input, packs_are_aligned(channels / 2, {f.input, f.weight, f.output}), [&](auto access) {
      using T = typename decltype(access)::Element;
      launch(Layout(name, channels, 0).launch_of(name, blocks_of(f.input.size(0)), handle),
             rotary_forward_kernel<T, decltype(access)::aligned>, rotary_of<T>(f, f.input));
    });
  });
}

void Attention::rotary_backward(Stream& stream, const RotaryBackward& b) {
  constexpr const char* name = "rotary_backward";
  const RotaryForward& f = b.forward;
  const int64_t rows = b.d_output.size(0), channels = b.d_output.size(2);
  const RowPartition blocks(rows, 2 * rows_at_once, rows_at_once);
  const Tensor partials =
      backend_.workspace(b.d_weight.defined() ? blocks.count * channels : 0, DType::float32, "partial weight sums of a rotary backward");
  backend_.enqueue(
      stream, name, 0, {f.input, f.positions, f.weight, f.inverse_deviation, b.d_output, b.d_input, b.d_weight, partials},
      [&](cudaStream_t handle) {
        const bool aligned = packs_are_aligned(channels / 2, {f.weight, b.d_output, b.d_input}) &&
                             (!f.weight.defined() || packs_are_aligned(channels / 2, {f.input}));
        with_access(name, b.d_output, aligned, [&](auto access) {
          using T = typename decltype(access)::Element;
          constexpr bool is_aligned = decltype(access)::aligned;
          Rotary<T> a = rotary_of<T>(f, b.d_output);
          a.direction = -1.0f, a.output = elements_of<T>(b.d_input);
          if (!f.weight.defined()) {  // turning back is all there is
            a.input = elements_of<T>(b.d_output), a.inverse_deviation = nullptr;
            launch(Layout(name, channels, 0).launch_of(name, blocks_of(rows), handle), rotary_forward_kernel<T, is_aligned>, a);
            return;
          }
          a.d_output = elements_of<T>(b.d_output), a.partials = elements_of<float>(partials);
          a.rows_per_block = blocks.size;
          launch(Layout(name, channels, channels).launch_of(name, blocks.count, handle), rotary_backward_kernel<T, is_aligned>, a);
        });
        if (!b.d_weight.defined()) return;
        PartialSums total;
        total.partials = elements_of<float>(partials), total.blocks = blocks.count;
        total.columns = total.packs = channels;
        total.add(b.d_weight, b.accumulate_weight);
        add_partial_sums(handle, total);
      });
}

}  // namespace dmuon::cuda
