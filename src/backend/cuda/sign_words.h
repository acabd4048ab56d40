// Words of signs (backend/signs.h) as kernels see them.
#pragma once

#include "backend/cuda/device_language.h"
#include "dmuon/core/tensor.h"

namespace dmuon::cuda {

using SignWord = unsigned long long;
constexpr int sign_word_bits = 64;
constexpr int sign_threads = 256;  // of a block

inline SignWord* sign_words_of(const Tensor& tensor) { return reinterpret_cast<SignWord*>(tensor.data<int64_t>()); }

}  // namespace dmuon::cuda
