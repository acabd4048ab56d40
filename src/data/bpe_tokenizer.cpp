#include "data/bpe_tokenizer.h"

#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::vector<AddedToken> those(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens)
    if (token.normalized == normalized) out.push_back(token);
  return out;
}

size_t character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace

// A workspace for the time of one call.
class BpeTokenizer::Lease {
 public:
  explicit Lease(const BpeTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner_.mutex_);
      if (!owner_.idle_.empty()) {
        held_ = std::move(owner_.idle_.back());
        owner_.idle_.pop_back();
      }
    }
    if (!held_) held_ = std::make_unique<Workspace>();
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(held_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Workspace& operator*() const { return *held_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Workspace> held_;
};

BpeTokenizer::BpeTokenizer(BpeDescription description)
    : description_(std::move(description)),
      raw_(those(description_.added, false)),
      normalized_(those(description_.added, true)),
      pre_tokenizer_(description_.pattern) {}

void BpeTokenizer::encode(std::string_view source, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
                          SpecialTokens policy) const {
  if (const size_t valid = utf8::valid_length(source); valid < source.size())
    throw DataError(utf8::invalid_message(source.substr(valid), origin, offset + static_cast<int64_t>(valid)));
  const Lease lease(*this);
  Workspace& workspace = *lease;
  const bool special = policy == SpecialTokens::parse;
  raw_.split(source, special, [&](std::string_view stretch, int32_t token) {
    if (token >= 0) return ids.push_back(token);
    if (description_.compose) {
      workspace.composed.clear();
      unicode::append_composed(stretch, workspace.composed);
      stretch = workspace.composed;
    }
    normalized_.split(stretch, special, [&](std::string_view plain, int32_t found) {
      if (found >= 0) return ids.push_back(found);
      encode_plain(plain, workspace, ids);
    });
  });
}

void BpeTokenizer::encode_plain(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const {
  pre_tokenizer_.split(text, [&](std::string_view word) { encode_word(word, workspace, ids); });
}

void BpeTokenizer::encode_word(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  if (word.size() == 1) return ids.push_back(description_.byte_ids[static_cast<unsigned char>(word[0])]);
  if (word.size() > WordCache::longest_word) {
    merge_word(word, workspace);
    ids.insert(ids.end(), workspace.merging.begin(), workspace.merging.end());
    return;
  }
  WordCache::Slot& slot = workspace.words.slot(word);
  if (!slot.holds(word)) {
    merge_word(word, workspace);
    if (workspace.merging.size() > WordCache::most_ids) {
      ids.insert(ids.end(), workspace.merging.begin(), workspace.merging.end());
      return;
    }
    slot.set(word, workspace.merging);
  }
  ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
}

void BpeTokenizer::merge_word(std::string_view word, Workspace& workspace) const {
  std::vector<int32_t>& ids = workspace.merging;
  ids.clear();
  if (const auto whole = description_.whole_words.find(word); whole != description_.whole_words.end()) return ids.push_back(whole->second);
  for (const char byte : word) ids.push_back(description_.byte_ids[static_cast<unsigned char>(byte)]);
  description_.merges.apply(ids);
}

size_t BpeTokenizer::complete_prefix(std::string_view text, SpecialTokens) const {
  constexpr size_t suspicious = 65536;  // so long without a place to cut: perhaps this is no text at all
  if (!pre_tokenizer_.has_scanner()) return 0;
  const uint8_t* classes = unicode::classes();
  bool checked = false;
  for (size_t at = utf8::complete_prefix(text); at > 0;) {
    const size_t before = character_before(text, at);
    const utf8::Decoded left = utf8::decode(text.substr(before));
    if (at < text.size()) {
      const utf8::Decoded right = utf8::decode(text.substr(at));
      if (left.bytes > 0 && right.bytes > 0 &&
          pre_tokenizer_.separates(classes[left.code_point], classes[right.code_point], right.code_point) && !raw_.touches(text, at) &&
          !normalized_.touches(text, at))
        return at;
    }
    at = before;
    if (!checked && text.size() - at > suspicious) {
      checked = true;
      const std::string_view characters = text.substr(0, utf8::complete_prefix(text));
      if (utf8::valid_length(characters) < characters.size()) return text.size();  // for encode() to refuse
    }
  }
  return 0;
}

std::string BpeTokenizer::decode_bytes(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (id < 0 || id >= std::ssize(description_.bytes))
      throw DataError(text("token id ", id, " is outside the tokenizer's vocabulary of ", description_.bytes.size()));
    out += description_.bytes[static_cast<size_t>(id)];
  }
  return out;
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const { return utf8::replace_invalid(decode_bytes(ids)); }

Json BpeTokenizer::to_json() const {
  Json files = Json::array();
  for (const TokenizerFile& file : description_.files) {
    Json entry = Json::object();
    entry.set("name", file.name);
    entry.set("content", file.content);
    files.push_back(std::move(entry));
  }
  Json description = Json::object();
  description.set("type", "huggingface");
  description.set("files", std::move(files));
  return description;
}

}  // namespace dmuon
