// Errors of the runtime's stand-in: the sticky one, those of the calling thread, and those planned for tests.
//
// CUDA_ON_HOST_FAIL plans failures: "NAME:COUNT", several with commas. NAME is a function of the runtime (its COUNT-th call
// fails: allocations for lack of memory, others as cudaErrorUnknown), "kernel" (the COUNT-th kernel fails), "kernel=NAME" (so of
// that name), "device" (the device is lost at the COUNT-th piece of work), "no_wait" (streams wait for no event), "driver" (no driver is
// installed), or "old_driver"; "float16_product=HEIGHTxWIDTH" makes every float16 product of cuBLASLt with that result (as the library sees
// it, column-major) wrong; "epilogue=NUMBER" has cuBLASLt know no algorithm with that epilogue, "batch_by_pointers=COUNT" has it refuse
// that number of matrices.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace cuda_on_host {

// Replaces what CUDA_ON_HOST_FAIL planned.
void plan_failures(const std::string& text);
// Counts one more call of `name`; true: this one is to fail.
bool fails_now(const std::string& name);
bool planned(const std::string& name);

void set_sticky_error(cudaError_t error, const std::string& text);
void clear_errors();
// What a call of the runtime named `function` has to return at once: the sticky error, or a planned one.
cudaError_t call_error(const char* function);
// Remembers `error` for cudaGetLastError and returns it; `text`, if any, goes to stderr.
cudaError_t remember(cudaError_t error, const std::string& text = {});
cudaError_t last_error(bool forget);

}  // namespace cuda_on_host
