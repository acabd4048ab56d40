// Shared memory of the block that runs: poisoned when a block begins, with red zones behind each variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_on_host {

// Of a block, variables and dynamic memory together: what every kernel may have, and what one with leave may have
// (cudaFuncAttributeMaxDynamicSharedMemorySize), as on sm_80, the smallest device supported.
constexpr size_t common_shared_bytes = 48 * 1024, most_shared_bytes = 163 * 1024;
// The dynamic memory that a kernel has leave for on the calling thread's device.
size_t allowed_dynamic_bytes(const void* kernel);

// Every unwritten byte, in device and shared memory: two bytes that make NaN of float64, float32, float16 and bfloat16, and an
// index far out of every range.
constexpr uint16_t poison = 0x7ff1;
void fill_poison(void* memory, size_t bytes);
bool is_poison(const void* memory, size_t bytes);

// Around a kernel with so much dynamic shared memory and at most `limit` bytes in all: a variable beyond them fails the kernel. The
// end describes a variable whose red zone was written, if there is one.
void begin_shared_memory(size_t dynamic_bytes, size_t limit);
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
