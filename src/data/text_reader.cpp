#include "data/text_reader.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

void read_text(const std::string& file, const std::function<size_t(std::string_view)>& complete_prefix,
               const std::function<void(std::string_view, int64_t)>& consume) {
  constexpr size_t piece_bytes = size_t{1} << 20;
  const auto close = [](std::FILE* stream) { std::fclose(stream); };
  const std::unique_ptr<std::FILE, decltype(close)> stream(std::fopen(file.c_str(), "rbe"), close);
  if (!stream) throw StorageError(text("cannot read ", file, ": ", std::strerror(errno)));
  std::string buffer;
  int64_t offset = 0;
  for (bool at_end = false; !at_end;) {
    const size_t carried = buffer.size();
    buffer.resize(carried + piece_bytes);
    const size_t got = std::fread(buffer.data() + carried, 1, piece_bytes, stream.get());
    if (std::ferror(stream.get())) throw StorageError(text("cannot read ", file, ": ", std::strerror(errno)));
    buffer.resize(carried + got);
    at_end = got < piece_bytes;
    const size_t size = at_end ? buffer.size() : complete_prefix(buffer);
    if (size > 0) consume(std::string_view(buffer).substr(0, size), offset);
    offset += static_cast<int64_t>(size);
    buffer.erase(0, size);
  }
}

}  // namespace dmuon
