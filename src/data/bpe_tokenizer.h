// Byte-level BPE: added tokens, composition, words, merges.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/merge_table.h"
#include "data/pre_tokenizer.h"
#include "data/word_cache.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

// What the files of a tokenizer say, checked.
struct BpeDescription {
  std::vector<std::string> bytes;          // by id: what it decodes to
  std::array<int32_t, 256> byte_ids = {};  // where merging starts
  MergeTable merges{0};
  // With ignore_merges: words that are tokens need no merging. By bytes; otherwise empty.
  std::unordered_map<std::string_view, int32_t> whole_words;
  std::vector<AddedToken> added;
  std::string pattern;
  bool compose = false;  // NFC
  std::optional<int32_t> end_of_text;
  std::vector<TokenizerFile> files;
  std::string hash;  // of the files that decide ids
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeDescription description);
  std::string_view name() const override { return "bpe"; }
  int64_t vocabulary_size() const override { return std::ssize(description_.bytes); }
  using Tokenizer::complete_prefix;
  using Tokenizer::encode;
  void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
              SpecialTokens policy) const override;
  size_t complete_prefix(std::string_view text, SpecialTokens policy) const override;
  // With a pattern that has no scanner a document is one stretch.
  int64_t longest_stretch() const override { return int64_t{pre_tokenizer_.has_scanner() ? 4 : 256} << 20; }
  std::string decode_bytes(std::span<const int32_t> ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::optional<int32_t> end_of_text() const override { return description_.end_of_text; }
  std::vector<TokenizerFile> huggingface_files() const override { return description_.files; }
  Json to_json() const override;
  std::string hash() const override { return description_.hash; }

 private:
  // What one call of encode() works with; kept for later calls.
  struct Workspace {
    WordCache words;
    std::vector<int32_t> merging;
    std::string composed;
  };
  class Lease;

  void encode_plain(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const;
  void merge_word(std::string_view word, Workspace& workspace) const;

  BpeDescription description_;
  AddedTokens raw_, normalized_;
  PreTokenizer pre_tokenizer_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;  // at most as many as threads have encoded at once
};

}  // namespace dmuon
