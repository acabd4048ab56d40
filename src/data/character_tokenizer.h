// One id per UTF-8 code point, ids in code point order.
#pragma once

#include "dmuon/data/tokenizer.h"

namespace dmuon {

class CharacterTokenizer : public Tokenizer {
 public:
  // Strictly increasing, not empty.
  explicit CharacterTokenizer(std::vector<char32_t> code_points);
  std::string_view name() const override { return "character"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(code_points_.size()); }
  using Tokenizer::complete_prefix;
  using Tokenizer::encode;
  void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
              SpecialTokens policy) const override;
  size_t complete_prefix(std::string_view text, SpecialTokens policy) const override;
  std::string decode_bytes(std::span<const int32_t> ids) const override;
  Json to_json() const override;

 private:
  std::vector<char32_t> code_points_;
  std::vector<int32_t> ids_;  // by code point up to the largest known one; -1: unknown
};

}  // namespace dmuon
