#include "data/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/utf8.h"

namespace dmuon {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) begins_[static_cast<unsigned char>(token.content[0])] = true;
  if (tokens_.empty()) return;
  longest_ = tokens_[0].content.size();
  if (std::count(begins_.begin(), begins_.end(), true) == 1) only_ = static_cast<unsigned char>(tokens_[0].content[0]);
}

const AddedToken* AddedTokens::find(std::string_view text, size_t& from) const {
  for (; from < text.size(); ++from) {
    if (only_ >= 0) {
      const void* next = std::memchr(text.data() + from, only_, text.size() - from);
      if (next == nullptr) return nullptr;
      from = static_cast<size_t>(static_cast<const char*>(next) - text.data());
    } else if (!begins_[static_cast<unsigned char>(text[from])]) {
      continue;
    }
    for (const AddedToken& token : tokens_)
      if (text.substr(from).starts_with(token.content)) return &token;
  }
  return nullptr;
}

bool AddedTokens::touches(std::string_view text, size_t at) const {
  if (tokens_.empty()) return false;
  for (size_t begin = at - std::min(at, longest_); begin <= at; ++begin) {
    if (begin == text.size() || !begins_[static_cast<unsigned char>(text[begin])]) continue;
    for (const AddedToken& token : tokens_) {
      const std::string_view seen = text.substr(begin, token.content.size());
      if (!std::string_view(token.content).starts_with(seen)) continue;
      const size_t end = begin + token.content.size();
      if ((begin < at && end > at) || (begin == at && token.left_strip) || (end == at && token.right_strip)) return true;
    }
  }
  return false;
}

size_t AddedTokens::strip_left(std::string_view text, size_t at) {
  while (at > 0) {
    size_t before = at - 1;
    while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
    if (!(unicode::classes()[utf8::decode(text.substr(before)).code_point] & unicode::space)) break;
    at = before;
  }
  return at;
}

size_t AddedTokens::strip_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    const utf8::Decoded next = utf8::decode(text.substr(at));
    if (!(unicode::classes()[next.code_point] & unicode::space)) break;
    at += next.bytes;
  }
  return at;
}

}  // namespace dmuon
