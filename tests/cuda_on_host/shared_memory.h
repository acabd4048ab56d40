// Shared memory of the block that runs: poisoned when a block begins, with red zones behind each variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_on_host {

constexpr size_t most_shared_bytes = 227 * 1024;  // of a block, as on sm_90

// Every unwritten byte, in device and shared memory: two bytes that make NaN of float64, float32, float16 and bfloat16, and an
// index far out of every range.
constexpr uint16_t poison = 0x7ff1;
void fill_poison(void* memory, size_t bytes);
bool is_poison(const void* memory, size_t bytes);

// Around a kernel with so much dynamic shared memory; the end describes a variable whose red zone was written, if there is one.
void begin_shared_memory(size_t dynamic_bytes);
std::string end_shared_memory();

struct SharedVariable {
  const char* name = nullptr;
  unsigned char* memory = nullptr;
  size_t bytes = 0;
};
// The variable of the running kernel that holds `address` or its red zone; nullptr: no shared memory.
const SharedVariable* shared_variable_at(const void* address);
// False: certainly none; quick.
bool may_be_shared(const void* address);

}  // namespace cuda_on_host
