// Checks of every access of a kernel to device and shared memory.
//
// The checked build compiles the kernels with -fsanitize=thread, which makes the compiler call a function before each access,
// and brings its own functions of these names instead of the sanitizer's library. So the kernels' text needs nothing for it.
#pragma once

#include <cstddef>

namespace cuda_on_host {

// `pc`: an address in the code that makes the access. Ends the kernel with a report when the access is wrong.
void check_access(const void* address, size_t bytes, bool write, const void* pc);

}  // namespace cuda_on_host
