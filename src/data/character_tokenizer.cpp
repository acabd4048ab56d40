#include "data/character_tokenizer.h"

#include "data/text_reader.h"
#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Calls `visit(code point, byte offset inside text)`; DataError for invalid UTF-8.
template <class Visit>
void for_each_code_point(std::string_view text, std::string_view origin, int64_t offset, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80) {
      visit(byte, at++);
      continue;
    }
    const utf8::Decoded next = utf8::decode(text.substr(at));
    if (next.bytes == 0) throw DataError(utf8::invalid_message(text.substr(at), origin, offset + static_cast<int64_t>(at)));
    visit(next.code_point, at);
    at += next.bytes;
  }
}

// Which code points occur.
class CodePointSet {
 public:
  CodePointSet() : present_(0x110000, false) {}
  void add(std::string_view text, std::string_view origin, int64_t offset) {
    for_each_code_point(text, origin, offset, [&](char32_t code_point, size_t) { present_[code_point] = true; });
  }
  std::vector<char32_t> sorted() const {
    std::vector<char32_t> out;
    for (size_t code_point = 0; code_point < present_.size(); ++code_point)
      if (present_[code_point]) out.push_back(static_cast<char32_t>(code_point));
    return out;
  }

 private:
  std::vector<bool> present_;
};

}  // namespace

CharacterTokenizer::CharacterTokenizer(std::vector<char32_t> code_points) : code_points_(std::move(code_points)) {
  ids_.assign(static_cast<size_t>(code_points_.back()) + 1, -1);
  for (size_t id = 0; id < code_points_.size(); ++id) ids_[code_points_[id]] = static_cast<int32_t>(id);
}

void CharacterTokenizer::encode(std::string_view source, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
                                SpecialTokens) const {
  for_each_code_point(source, origin, offset, [&](char32_t code_point, size_t at) {
    const int32_t id = code_point < ids_.size() ? ids_[code_point] : -1;
    if (id < 0)
      throw DataError(
          text(origin, ": character ", utf8::name_of(code_point), " at byte offset ", offset + static_cast<int64_t>(at),
               " is not one of the ", code_points_.size(),
               " that the character tokenizer knows from the training text; remove it, add it there, or use the byte tokenizer"));
    ids.push_back(id);
  });
}

size_t CharacterTokenizer::complete_prefix(std::string_view source, SpecialTokens) const { return utf8::complete_prefix(source); }

std::string CharacterTokenizer::decode_bytes(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= code_points_.size())
      throw DataError(text("token id ", id, " is outside the character tokenizer's vocabulary of ", code_points_.size()));
    utf8::append(code_points_[static_cast<size_t>(id)], out);
  }
  return out;
}

Json CharacterTokenizer::to_json() const {
  std::string characters;
  for (const char32_t code_point : code_points_) utf8::append(code_point, characters);
  Json description = Json::object();
  description.set("type", "character");
  description.set("characters", characters);
  return description;
}

TokenizerHandle make_character_tokenizer(std::string_view characters) {
  CodePointSet set;
  set.add(characters, "characters of a tokenizer", 0);
  std::vector<char32_t> code_points = set.sorted();
  if (code_points.empty()) throw DataError("a character tokenizer needs at least one character");
  return std::make_shared<CharacterTokenizer>(std::move(code_points));
}

TokenizerHandle make_character_tokenizer_from_files(std::span<const std::string> files) {
  CodePointSet set;
  for (const std::string& file : files)
    read_text(file, utf8::complete_prefix, [&](std::string_view piece, int64_t offset) { set.add(piece, file, offset); });
  std::vector<char32_t> code_points = set.sorted();
  if (code_points.empty()) throw DataError(text(join({files.begin(), files.end()}, ", "), ": no character to build a tokenizer from"));
  return std::make_shared<CharacterTokenizer>(std::move(code_points));
}

}  // namespace dmuon
