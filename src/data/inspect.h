// What `dmuon_data inspect` finds out about data files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

struct FileSummary {
  std::string name;
  TokenFormat format = TokenFormat::text;
  int64_t bytes = 0;
  int64_t tokens = 0;  // with the tokenizer given; text without one counts bytes
  int32_t smallest = 0, largest = 0;
  std::vector<int32_t> first;  // the first ids, at most 32
  std::string preview;         // `first` decoded; empty without a tokenizer
};

// Reads the whole file. `format` as in detect_format(); `tokenizer` may be null. DataError as open_tokens().
FileSummary inspect_file(const std::string& file, std::string_view format, const TokenizerHandle& tokenizer);

}  // namespace dmuon
