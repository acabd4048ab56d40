// Memory of the devices: one range of addresses, each allocation between red zones and filled with poison (shared_memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_on_host {

constexpr size_t red_zone = 256;  // at least so many bytes before and behind each allocation

struct Allocation {
  unsigned char* begin = nullptr;
  size_t bytes = 0;
  int device = 0;
  uint64_t serial = 0;  // the how manyth allocation of the process
};

bool is_device_memory(const void* address);
bool is_pinned_memory(const void* address);
// The live allocation that holds the address or, with `near`, whose red zones do; false: none.
bool find_allocation(const void* address, bool near, Allocation& found);
// "allocation 12 of 4096 bytes on device 0" and where the address lies in or from it.
std::string describe_address(const void* address);

// What is wrong with `bytes` from `address` as the range of a copy: it is device memory but not inside one live allocation.
// Empty: nothing.
std::string range_error(const void* address, size_t bytes);

// Looks at red zones; describes one that was written, and restores it. All of them while there are few, and otherwise some
// hundreds in turn, so that damage is found within several kernels.
std::string damaged_red_zone();

// Tells the checks of uninitialised reads that these bytes have been written by something else than a checked kernel. Needed
// only where what was written may look like poison.
void mark_written(void* address, size_t bytes);
// A byte for each of device memory: 0 out of bounds, 1 never written, 2 written. Kept when `check_accesses` was called before the
// first allocation; nullptr otherwise.
void check_accesses();
bool accesses_are_checked();
// True in a build with the address sanitizer, which ends the process at the first access out of bounds.
bool addresses_are_sanitized();
unsigned char* shadow_of(const void* address);

}  // namespace cuda_on_host
