// Memory that no allocator handed out but that belongs in its statistics.
#pragma once

#include "dmuon/core/memory.h"

namespace dmuon {

// While the handle lives, `allocator` counts `bytes` more of the category (memory shared between processes, mapped
// files). Of allocators of this library only; null for others, which do not count it.
std::shared_ptr<const void> count_external_memory(Allocator& allocator, int64_t bytes, MemoryCategory category);

}  // namespace dmuon
