// Tokens that are found in the text as they stand, before anything else.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode.h"

namespace dmuon {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // not empty, UTF-8
  bool special = false;      // found only with SpecialTokens::parse
  bool normalized = false;   // found after those that are not
  bool left_strip = false;   // takes the white space before it along
  bool right_strip = false;  // and the white space after it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  // Calls `visit(text, -1)` for the stretches between tokens and `visit(text, id)` for tokens, in order; of tokens that
  // begin at one place the longest counts. Special ones are passed over (left in the stretches) unless `special`.
  template <class Visit>
  void split(std::string_view text, bool special, const Visit& visit) const {
    size_t done = 0;
    for (size_t from = 0; const AddedToken* token = tokens_.empty() ? nullptr : find(text, from);) {
      size_t begin = from, end = from + token->content.size();
      from = end;
      if (token->special && !special) continue;
      if (token->left_strip) begin = std::max(done, strip_left(text, begin));
      if (token->right_strip) from = end = strip_right(text, end);
      if (begin > done) visit(text.substr(done, begin - done), int32_t{-1});
      visit(text.substr(begin, end - begin), token->id);
      done = end;
    }
    if (done < text.size()) visit(text.substr(done), int32_t{-1});
  }

  // Whether a token, special or not, may lie across `at` or changes what white space at `at` belongs to. A token that `text`
  // ends inside of counts.
  bool touches(std::string_view text, size_t at) const;

 private:
  // The first token at or after `from`, which becomes its place; null: none.
  const AddedToken* find(std::string_view text, size_t& from) const;
  static size_t strip_left(std::string_view text, size_t at);
  static size_t strip_right(std::string_view text, size_t at);

  std::vector<AddedToken> tokens_;     // longest first
  std::array<bool, 256> begins_ = {};  // bytes that a token begins with
  size_t longest_ = 0;
  int only_ = -1;  // the byte that all begin with, if there is one
};

}  // namespace dmuon
