// Device memory with the categories of the host's.
#pragma once

#include <memory>

#include "dmuon/core/memory.h"

namespace dmuon::cuda {

std::shared_ptr<Allocator> make_cuda_allocator();

}  // namespace dmuon::cuda
