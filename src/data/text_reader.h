// Text files in pieces of about a mebibyte, so that a file larger than memory can be tokenized.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dmuon {

// Calls `consume(piece, byte offset of the piece)` front to back. `complete_prefix` says how much of the text read so far
// may be cut off as a piece; what remains is carried over, and at the end of the file handed on as it is. StorageError
// if reading fails.
void read_text(const std::string& file, const std::function<size_t(std::string_view)>& complete_prefix,
               const std::function<void(std::string_view, int64_t)>& consume);

}  // namespace dmuon
