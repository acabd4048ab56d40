// One id per byte.
#pragma once

#include "dmuon/data/tokenizer.h"

namespace dmuon {

class ByteTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  int64_t vocabulary_size() const override { return 256; }
  using Tokenizer::complete_prefix;
  using Tokenizer::encode;
  void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
              SpecialTokens policy) const override;
  size_t complete_prefix(std::string_view text, SpecialTokens) const override { return text.size(); }
  std::string decode_bytes(std::span<const int32_t> ids) const override;
  Json to_json() const override;
};

}  // namespace dmuon
