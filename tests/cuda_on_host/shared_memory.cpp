#include "cuda_on_host/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_on_host/fibers.h"
#include "cuda_on_host/language.h"

namespace cuda_on_host {
namespace {

constexpr unsigned char red = 0xbd;

// Of the running kernel.
struct SharedMemory {
  std::vector<SharedVariable> variables;
  size_t dynamic_bytes = 0, limit = 0;
  uint64_t dynamic_seen = 0;
  uintptr_t lowest = ~uintptr_t{0}, highest = 0;  // addresses of all variables and their red zones
  alignas(1024) unsigned char dynamic[most_shared_bytes + shared_red_zone];
};

SharedMemory& memory() {
  static SharedMemory only;
  return only;
}

}  // namespace

void fill_poison(void* destination, size_t bytes) {
  constexpr uint64_t four = 0x0001000100010001ull * poison;
  auto* to = static_cast<unsigned char*>(destination);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) std::memcpy(to + i, &four, 8);
  std::memcpy(to + i, &four, bytes - i);
}

bool is_poison(const void* source, size_t bytes) {
  constexpr uint64_t four = 0x0001000100010001ull * poison;
  const auto* from = static_cast<const unsigned char*>(source);
  const auto* pattern = reinterpret_cast<const unsigned char*>(&four);
  const bool odd = reinterpret_cast<uintptr_t>(from) % 2 != 0;
  for (size_t i = 0; i < bytes; ++i)
    if (from[i] != pattern[(i + odd) % 2]) return false;
  return true;
}

void begin_shared_memory(size_t dynamic_bytes, size_t limit) {
  memory().variables.clear();
  memory().lowest = ~uintptr_t{0};
  memory().highest = 0;
  memory().dynamic_bytes = dynamic_bytes;
  memory().limit = limit;
}

void register_shared(const char* name, void* address, size_t bytes, uint64_t& seen) {
  seen = block_serial;
  auto* begin = static_cast<unsigned char*>(address);
  auto& variables = memory().variables;
  if (std::none_of(variables.begin(), variables.end(), [&](const SharedVariable& v) { return v.memory == begin; })) {
    variables.push_back({name, begin, bytes});
    memory().lowest = std::min(memory().lowest, reinterpret_cast<uintptr_t>(begin));
    memory().highest = std::max(memory().highest, reinterpret_cast<uintptr_t>(begin + bytes + shared_red_zone));
    std::memset(begin + bytes, red, shared_red_zone);
    // Dynamic memory counts whether or not the kernel has come to it.
    size_t total = memory().dynamic_bytes;
    for (const SharedVariable& v : variables)
      if (v.memory != memory().dynamic) total += v.bytes;
    if (total > memory().limit)
      fail_kernel(cudaErrorInvalidValue,
                  where() + ": " + std::to_string(total) + " bytes of shared memory, variables and dynamic; " +
                      (memory().limit == most_shared_bytes ? "a block has " : "without leave for more a block has ") +
                      std::to_string(memory().limit));
  }
  fill_poison(begin, bytes);
}

void* dynamic_shared() {
  SharedMemory& m = memory();
  if (m.dynamic_seen != block_serial) register_shared("(dynamic)", m.dynamic, m.dynamic_bytes, m.dynamic_seen);
  return m.dynamic;
}

std::string end_shared_memory() {
  for (const SharedVariable& v : memory().variables)
    for (size_t i = 0; i < shared_red_zone; ++i)
      if (v.memory[v.bytes + i] != red)
        return std::string("shared memory \"") + v.name + "\" of " + std::to_string(v.bytes) + " bytes was written " + std::to_string(i) +
               " bytes behind its end";
  return {};
}

bool may_be_shared(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  return a >= memory().lowest && a < memory().highest;
}

const SharedVariable* shared_variable_at(const void* address) {
  const auto* a = static_cast<const unsigned char*>(address);
  for (const SharedVariable& v : memory().variables)
    if (a >= v.memory && a < v.memory + v.bytes + shared_red_zone) return &v;
  return nullptr;
}

}  // namespace cuda_on_host
