// Entry of libFuzzer: one program for each target, chosen by DMUON_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dmuon::fuzz::DMUON_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
