// Buffers of the collective matrix and what they must hold: a formula of rank, element and operation that every rank knows.
#pragma once

#include <cmath>
#include <cstring>

#include "comm/collective_matrix.h"
#include "dmuon/core/text.h"

namespace dmuon::testing {

// Values whose sums round differently in every order.
template <class T>
T value_at(int rank, int64_t index, int salt) {
  uint64_t h = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9ull +
               static_cast<uint64_t>(salt) * 0x94d049bb133111ebull;
  h ^= h >> 31;
  h *= 0xd6e8feb86659fd93ull;
  h ^= h >> 32;
  const double unit = static_cast<double>(h >> 11) / 9007199254740992.0 - 0.5;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(h);
  else
    return static_cast<T>(static_cast<float>(unit * std::exp2(static_cast<double>(h % 24))));
}

struct Opened {
  explicit Opened(const Tensor& t) : tensor(t) { tensor.storage()->open(); }
  ~Opened() { tensor.storage()->close(); }
  Tensor tensor;
};

template <class T>
Tensor make(Allocator& allocator, int64_t elements) {
  return Tensor(allocator.allocate(elements * static_cast<int64_t>(sizeof(T)), MemoryCategory::gradients, "test"), 0, Shape{elements},
                DTypeOf<T>::value);
}

template <class T>
Tensor make(Matrix& m, int64_t elements) {
  if (m.device == nullptr) return make<T>(m.allocator, elements);
  return m.device->allocate(Shape{elements}, DTypeOf<T>::value, MemoryCategory::gradients, "test");
}

// A buffer of a collective.
template <class T>
Tensor buffer_of(Matrix& m, int64_t elements) {
  if (m.backend == nullptr) return make<T>(m, elements);
  return m.group.allocate(*m.backend, {elements}, DTypeOf<T>::value, MemoryCategory::gradients, "shared");
}

// The host's view of a tensor. `device`: the backend whose memory it is, null for the host's own.
template <class T>
void write(Backend* device, const Tensor& tensor, const std::function<T(int64_t)>& value) {
  std::vector<T> host(static_cast<size_t>(tensor.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) host[static_cast<size_t>(i)] = value(i);
  if (host.empty()) return;
  if (device == nullptr) {
    const Opened opened(tensor);
    std::memcpy(tensor.raw(), host.data(), host.size() * sizeof(T));
    return;
  }
  device->copy_from_host(device->compute_stream(), host.data(), tensor);
  device->compute_stream().synchronize();
}

template <class T>
std::vector<T> read(Backend* device, const Tensor& tensor) {
  std::vector<T> host(static_cast<size_t>(tensor.elements()));
  if (host.empty()) return host;
  if (device == nullptr) {
    const Opened opened(tensor);
    std::memcpy(host.data(), tensor.raw(), host.size() * sizeof(T));
  } else {
    device->copy_to_host(device->compute_stream(), tensor, host.data());
  }
  return host;
}

template <class T>
void fill(Backend* device, const Tensor& tensor, int rank, int salt) {
  write<T>(device, tensor, [&](int64_t i) { return value_at<T>(rank, i, salt); });
}

template <class T>
int64_t first_difference(Backend* device, const Tensor& tensor, const std::function<T(int64_t)>& expected) {
  const std::vector<T> found = read<T>(device, tensor);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const T want = expected(i);
    if (std::memcmp(&found[static_cast<size_t>(i)], &want, sizeof(T)) != 0) return i;
  }
  return -1;
}

template <class T>
using Accumulated = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

// Serial, in rank order.
template <class T>
Accumulated<T> reduced(int ranks, int64_t index, int salt, ReduceOperation operation) {
  using A = Accumulated<T>;
  A result = static_cast<A>(value_at<T>(0, index, salt));
  for (int r = 1; r < ranks; ++r) {
    const A next = static_cast<A>(value_at<T>(r, index, salt));
    if (operation == ReduceOperation::sum) {
      if constexpr (std::is_integral_v<A>)
        result = static_cast<A>(static_cast<std::make_unsigned_t<A>>(result) + static_cast<std::make_unsigned_t<A>>(next));
      else
        result = result + next;
    } else if (operation == ReduceOperation::maximum) {
      result = std::max(result, next);
    } else {
      result = std::min(result, next);
    }
  }
  return result;
}

// Cuts of `elements` among the ranks: 0 even, 1 random uneven, 2 everything to the last, 3 everything to the first,
// 4 a gap before and behind.
inline std::vector<int64_t> make_cuts(int ranks, int64_t elements, int kind) {
  std::vector<int64_t> cuts{0};
  for (int r = 1; r < ranks; ++r) {
    if (kind == 0)
      cuts.push_back(elements * r / ranks);
    else if (kind == 2)
      cuts.push_back(0);
    else if (kind == 3)
      cuts.push_back(elements);
    else
      cuts.push_back(cuts.back() + static_cast<int64_t>(value_at<uint8_t>(r, elements, kind)) * (elements - cuts.back()) / 400);
  }
  cuts.push_back(elements);
  if (kind == 4 && elements > 4) {
    for (int64_t& cut : cuts) cut = std::clamp<int64_t>(cut, 1, elements - 2);
  }
  return cuts;
}

template <class T>
std::vector<int64_t> sizes_for(const Matrix& m) {
  std::vector<int64_t> sizes = m.sizes;
  if (std::is_same_v<T, float>) sizes.push_back(m.large);
  return sizes;
}

}  // namespace dmuon::testing
