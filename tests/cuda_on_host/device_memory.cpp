#include "cuda_on_host/device_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "cuda_on_host/device_queue.h"
#include "cuda_on_host/devices.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/shared_memory.h"
#include "cuda_on_host/stream_queue.h"
#include "dmuon/core/text.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#endif

using dmuon::text;

namespace cuda_on_host {
namespace {

constexpr size_t granule = 256;
constexpr size_t arena_bytes = size_t{1} << 37;  // of addresses
constexpr unsigned char red = 0xbd;
constexpr size_t few = 256;  // allocations whose red zones are looked at after every kernel

unsigned char* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

// All from red zone to red zone.
size_t footprint(size_t bytes) { return (bytes + granule - 1) / granule * granule + 2 * red_zone; }

class DeviceMemory {
 public:
  static DeviceMemory& only() {
    static auto* memory = new DeviceMemory;
    return *memory;
  }

  void* allocate(int device, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t total = footprint(bytes);
    if (used_[device] + bytes > device_memory_bytes()) return nullptr;
    // From where the last one ended, so that addresses come back as late as possible.
    auto range = free_.lower_bound(cursor_);
    size_t looked = 0;
    for (; looked < free_.size(); ++looked, ++range) {
      if (range == free_.end()) range = free_.begin();
      if (range->second >= total) break;
    }
    if (looked == free_.size()) return nullptr;
    const size_t offset = range->first;
    const size_t left = range->second - total;
    free_.erase(range);
    if (left > 0) free_[offset + total] = left;
    cursor_ = offset + total;
    used_[device] += bytes;
    unsigned char* begin = base_ + offset + red_zone;
    ASAN_UNPOISON_MEMORY_REGION(begin - red_zone, total);
    std::memset(begin - red_zone, red, red_zone);
    fill_poison(begin, bytes);
    std::memset(begin + bytes, red, total - red_zone - bytes);
    if (shadow_ != nullptr) std::memset(shadow_ + offset + red_zone, 1, bytes);
    ASAN_POISON_MEMORY_REGION(begin - red_zone, red_zone);
    ASAN_POISON_MEMORY_REGION(begin + bytes, total - red_zone - bytes);
    live_[begin] = {begin, bytes, device, ++serial_};
    return begin;
  }

  // False: not the beginning of a live allocation. `damage`: of its red zones.
  bool release(void* address, std::string& damage) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<unsigned char*>(address));
    if (found == live_.end()) return false;
    const Allocation a = found->second;
    damage = damaged(a);
    live_.erase(found);
    used_[a.device] -= a.bytes;
    size_t offset = static_cast<size_t>(a.begin - base_) - red_zone, total = footprint(a.bytes);
    ASAN_UNPOISON_MEMORY_REGION(base_ + offset, total);
    if (shadow_ != nullptr) std::memset(shadow_ + offset, 0, total);
    if (a.bytes > (1 << 20))
      madvise(base_ + (offset + 4095) / 4096 * 4096, (total - 4096) / 4096 * 4096, MADV_DONTNEED);
    else
      fill_poison(a.begin, a.bytes);
    ASAN_POISON_MEMORY_REGION(base_ + offset, total);
    const auto after = free_.find(offset + total);
    if (after != free_.end()) {
      total += after->second;
      free_.erase(after);
    }
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == offset)
      std::prev(next)->second += total;
    else
      free_[offset] = total;
    return true;
  }

  size_t used(int device) {
    const std::lock_guard lock(mutex_);
    return used_[device];
  }

  bool find(const void* address, bool near, Allocation& result) {
    const std::lock_guard lock(mutex_);
    auto* a = static_cast<unsigned char*>(const_cast<void*>(address));
    auto after = live_.upper_bound(a);
    if (after != live_.begin()) {
      const Allocation& before = std::prev(after)->second;
      const size_t distance = static_cast<size_t>(a - before.begin);
      if (distance < before.bytes || (near && distance < footprint(before.bytes) - red_zone)) return result = before, true;
    }
    if (near && after != live_.end() && after->second.begin - a <= static_cast<ptrdiff_t>(red_zone)) return result = after->second, true;
    return false;
  }

  std::string damaged_some() {
    const std::lock_guard lock(mutex_);
    auto next = live_.size() <= few ? live_.begin() : live_.upper_bound(looked_at_);
    for (size_t i = 0; i < std::min(few, live_.size()); ++i, ++next) {
      if (next == live_.end()) next = live_.begin();
      looked_at_ = next->first;
      if (std::string found = damaged(next->second); !found.empty()) return found;
    }
    return {};
  }

  bool contains(const void* address) const { return static_cast<size_t>(static_cast<const unsigned char*>(address) - base_) < arena_bytes; }
  unsigned char* shadow(const void* address) const {
    return shadow_ == nullptr ? nullptr : shadow_ + (static_cast<const unsigned char*>(address) - base_);
  }
  bool has_shadow() const { return shadow_ != nullptr; }
  void keep_shadow() { shadow_ = reserve(arena_bytes); }

  std::mutex pinned_mutex;
  std::map<const unsigned char*, size_t> pinned;

 private:
  DeviceMemory() : base_(reserve(arena_bytes)) { free_[granule] = arena_bytes - granule; }

  __attribute__((no_sanitize("address"))) static bool intact(const unsigned char* zone, size_t bytes) {
    uint64_t first = 0;
    for (size_t i = 0; i < sizeof first; ++i) first = first << 8 | red;
    uint64_t difference = 0;
    size_t i = 0;
    for (; i < bytes && reinterpret_cast<uintptr_t>(zone + i) % 8 != 0; ++i) difference |= zone[i] ^ red;
    for (; i + 8 <= bytes; i += 8) difference |= *reinterpret_cast<const uint64_t*>(zone + i) ^ first;
    for (; i < bytes; ++i) difference |= zone[i] ^ red;
    return difference == 0;
  }

  // Looks at the zones of one allocation and restores them.
  __attribute__((no_sanitize("address"))) static std::string damaged(const Allocation& a) {
    unsigned char* before = a.begin - red_zone;
    unsigned char* behind = a.begin + a.bytes;
    const size_t behind_bytes = footprint(a.bytes) - red_zone - a.bytes;
    if (intact(before, red_zone) && intact(behind, behind_bytes)) return {};
    std::string found;
    for (size_t i = 0; i < behind_bytes && found.empty(); ++i)
      if (behind[i] != red) found = text(i, " bytes behind the end");
    for (size_t i = 0; i < red_zone && found.empty(); ++i)
      if (before[red_zone - 1 - i] != red) found = text(i + 1, " bytes before the begin");
    ASAN_UNPOISON_MEMORY_REGION(before, red_zone);
    ASAN_UNPOISON_MEMORY_REGION(behind, behind_bytes);
    std::memset(before, red, red_zone);
    std::memset(behind, red, behind_bytes);
    ASAN_POISON_MEMORY_REGION(before, red_zone);
    ASAN_POISON_MEMORY_REGION(behind, behind_bytes);
    return text("memory was written ", found, " of allocation ", a.serial, " (", a.bytes, " bytes on device ", a.device, ")");
  }

  unsigned char* base_;
  unsigned char* shadow_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes
  size_t cursor_ = 0;
  std::map<unsigned char*, Allocation> live_;
  unsigned char* looked_at_ = nullptr;
  std::map<int, size_t> used_;
  uint64_t serial_ = 0;
};

}  // namespace

bool is_device_memory(const void* address) { return DeviceMemory::only().contains(address); }

bool is_pinned_memory(const void* address) {
  DeviceMemory& memory = DeviceMemory::only();
  const std::lock_guard lock(memory.pinned_mutex);
  const auto* a = static_cast<const unsigned char*>(address);
  const auto after = memory.pinned.upper_bound(a);
  return after != memory.pinned.begin() && a < std::prev(after)->first + std::prev(after)->second;
}

bool find_allocation(const void* address, bool near, Allocation& found) { return DeviceMemory::only().find(address, near, found); }

std::string describe_address(const void* address) {
  Allocation a;
  if (!find_allocation(address, true, a)) return is_device_memory(address) ? "no live allocation" : "no device memory";
  const ptrdiff_t offset = static_cast<const unsigned char*>(address) - a.begin;
  const std::string where = offset < 0                                 ? text(-offset, " bytes before")
                            : offset < static_cast<ptrdiff_t>(a.bytes) ? text("byte ", offset, " of")
                                                                       : text(offset - static_cast<ptrdiff_t>(a.bytes), " bytes behind");
  return text(where, " allocation ", a.serial, " (", a.bytes, " bytes on device ", a.device, ")");
}

std::string range_error(const void* address, size_t bytes) {
  if (bytes == 0 || !is_device_memory(address)) return {};
  Allocation a;
  const auto* from = static_cast<const unsigned char*>(address);
  if (find_allocation(address, false, a) && bytes <= static_cast<size_t>(a.begin + a.bytes - from)) return {};
  return text(bytes, " bytes from ", describe_address(address));
}

std::string damaged_red_zone() { return DeviceMemory::only().damaged_some(); }

void check_accesses() { DeviceMemory::only().keep_shadow(); }
bool addresses_are_sanitized() { return sanitized; }
bool accesses_are_checked() { return DeviceMemory::only().has_shadow(); }
unsigned char* shadow_of(const void* address) { return DeviceMemory::only().shadow(address); }
void mark_written(void* address, size_t bytes) {
  if (!is_device_memory(address) || bytes == 0) return;
  if (unsigned char* shadow = shadow_of(address); shadow != nullptr) std::memset(shadow, 2, bytes);
}

namespace {

cudaError_t wait_for_device() {
  if (on_device_thread()) return remember(cudaErrorNotPermitted, "memory is freed inside a host function");
  DeviceQueue& queue = DeviceQueue::only();
  auto lock = queue.lock();
  queue.wait_for_all(lock);
  return cudaSuccess;
}

void release_or_fail(void* address) {
  std::string damage;
  if (!DeviceMemory::only().release(address, damage)) return fail_device(cudaErrorInvalidValue, "memory that is not allocated was freed");
  if (!damage.empty()) fail_device(cudaErrorIllegalAddress, text("out of bounds, found when it was freed: ", damage));
}

}  // namespace
}  // namespace cuda_on_host

using namespace cuda_on_host;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = nullptr;
  if (const cudaError_t error = call_error("cudaMalloc"); error != cudaSuccess) return error;
  if (const cudaError_t error = forbidden_in_capture("cudaMalloc"); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  *address = DeviceMemory::only().allocate(current_device(), bytes);
  return *address != nullptr ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* address) {
  if (address == nullptr) return sticky_error();
  if (const cudaError_t error = forbidden_in_capture("cudaFree"); error != cudaSuccess) return error;
  if (const cudaError_t error = wait_for_device(); error != cudaSuccess) return error;
  release_or_fail(address);
  return sticky_error();
}

cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t handle) {
  *address = nullptr;
  if (const cudaError_t error = call_error("cudaMallocAsync"); error != cudaSuccess) return error;
  const auto stream = DeviceQueue::only().stream_of(handle);
  if (stream->capture) return remember(cudaErrorNotSupported, "the stand-in does not allocate in captured streams");
  if (bytes == 0) return cudaSuccess;
  *address = DeviceMemory::only().allocate(stream->device, bytes);
  return *address != nullptr ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  if (address == nullptr) return sticky_error();
  return queue_work(handle, "cudaFreeAsync", [address] { release_or_fail(address); });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = nullptr;
  if (const cudaError_t error = call_error("cudaHostAlloc"); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*address == nullptr) return remember(cudaErrorMemoryAllocation);
  fill_poison(*address, bytes);
  DeviceMemory& memory = DeviceMemory::only();
  const std::lock_guard lock(memory.pinned_mutex);
  memory.pinned[static_cast<unsigned char*>(*address)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

cudaError_t cudaFreeHost(void* address) {
  if (address == nullptr) return sticky_error();
  if (const cudaError_t error = wait_for_device(); error != cudaSuccess) return error;
  DeviceMemory& memory = DeviceMemory::only();
  {
    const std::lock_guard lock(memory.pinned_mutex);
    if (memory.pinned.erase(static_cast<unsigned char*>(address)) == 0) return remember(cudaErrorInvalidValue);
  }
  std::free(address);
  return sticky_error();
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  if (const cudaError_t error = call_error("cudaMemGetInfo"); error != cudaSuccess) return error;
  *total = device_memory_bytes();
  *free_bytes = *total - std::min(*total, DeviceMemory::only().used(current_device()));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  Allocation a;
  attributes->type = find_allocation(address, false, a) ? cudaMemoryTypeDevice
                     : is_pinned_memory(address)        ? cudaMemoryTypeHost
                                                        : cudaMemoryTypeUnregistered;
  attributes->device = attributes->type == cudaMemoryTypeDevice ? a.device : current_device();
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = const_cast<void*>(address);
  if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = const_cast<void*>(address);
  return sticky_error();
}

}  // extern "C"
