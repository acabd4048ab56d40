#include "data/inspect.h"

#include <algorithm>

#include "data/manifest.h"

namespace dmuon {

FileSummary inspect_file(const std::string& file, std::string_view format, const TokenizerHandle& tokenizer) {
  const std::vector<std::string> files = {file};
  FileSummary summary;
  summary.name = file;
  summary.format = detect_format(files, format);
  check_listed_hash(file);
  const bool text = summary.format == TokenFormat::text;
  const TokenSourceHandle source = open_tokens(files, summary.format, text && !tokenizer ? make_byte_tokenizer() : tokenizer,
                                               tokenizer ? tokenizer->vocabulary_size() : 0);
  summary.bytes = source->files()[0].bytes;
  summary.tokens = source->tokens();
  std::vector<int32_t> ids;
  for (int64_t at = 0; at < summary.tokens; at += static_cast<int64_t>(ids.size())) {
    ids.resize(static_cast<size_t>(std::min<int64_t>(summary.tokens - at, 1 << 20)));
    source->read(at, ids);
    const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
    summary.smallest = at == 0 ? *least : std::min(summary.smallest, *least);
    summary.largest = std::max(summary.largest, *most);
    if (at == 0) summary.first.assign(ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(32, std::ssize(ids)));
  }
  if (tokenizer) summary.preview = tokenizer->decode(summary.first);
  return summary;
}

}  // namespace dmuon
