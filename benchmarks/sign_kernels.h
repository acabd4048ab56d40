// What the benchmarks of one-bit votes share: the bandwidth at which one core or several read memory.
#pragma once

#include <cstdint>

namespace dmuon::bench {

// Combines all words of an array by OR, with independent accumulators and the widest loads of AVX2: as fast as this
// processor reads from wherever the array lies. `threads` read equal parts.
uint64_t read_all(const uint64_t* words, int64_t count, int threads);

}  // namespace dmuon::bench
