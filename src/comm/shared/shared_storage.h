// Storage of tensors in memory that the ranks of a host share.
#pragma once

#include "comm/shared/shared_segment.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

// [first, first + bytes) of the segment; `account` is kept as long as the storage.
StorageHandle make_shared_storage(std::shared_ptr<SharedSegment> segment, int64_t first, int64_t bytes, MemoryCategory category,
                                  std::shared_ptr<const void> account);
// The segment in which a tensor lies; null for other memory.
const SharedSegment* segment_of(const Tensor& tensor);

}  // namespace dmuon
