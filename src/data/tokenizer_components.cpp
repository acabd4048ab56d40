#include "data/tokenizer_components.h"

#include <algorithm>
#include <unordered_set>

#include "data/pre_tokenizer.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::tokenizer_components {
namespace {

void check_keys(const Json& object, const std::string& name, std::string_view where, const std::vector<std::string>& known) {
  if (!object.is_object()) throw DataError(text(name, ": ", where, " is ", object.type_name(), ", expected an object"));
  for (const auto& [key, value] : object.as_object())
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw DataError(text(name, ": ", where, " has the unknown key \"", key, "\"; known are ", join(known, ", ")));
}

const Json* present(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string string_member(const Json& object, std::string_view key, const std::string& name, std::string_view where) {
  return member(object, key, name, where, [](const Json& value) { return value.as_string(); });
}

Json::Array list_member(const Json& object, std::string_view key, const std::string& name, std::string_view where) {
  return member(object, key, name, where, [](const Json& value) { return value.as_array(); });
}

bool flag(const Json& object, std::string_view key, bool otherwise, const std::string& name, std::string_view where) {
  if (present(object, key) == nullptr) return otherwise;
  return member(object, key, name, where, [](const Json& value) { return value.as_bool(); });
}

std::string type_of(const Json& component) {
  const Json* type = component.is_object() ? component.find("type") : nullptr;
  return type != nullptr && type->is_string() ? type->as_string() : "without a type";
}

[[noreturn]] void refuse(const std::string& name, std::string_view key, const std::string& found, std::string_view implemented) {
  throw DataError(text(name, ": ", key, " ", found, " is not implemented, only ", implemented));
}

void check_byte_level(const Json& component, const std::string& name, std::string_view key) {
  if (type_of(component) != "ByteLevel") refuse(name, key, type_of(component), "ByteLevel");
  check_keys(component, name, key, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

// Of the pre-tokenizer: true if it splits by GPT-2's pattern.
bool byte_level_splits(const Json& component, const std::string& name) {
  check_byte_level(component, name, "pre_tokenizer");
  if (flag(component, "add_prefix_space", true, name, "pre_tokenizer ByteLevel"))
    refuse(name, "pre_tokenizer ByteLevel", "with add_prefix_space", "without");
  return flag(component, "use_regex", true, name, "pre_tokenizer ByteLevel");
}

std::string split_pattern(const Json& component, const std::string& name) {
  check_keys(component, name, "pre_tokenizer Split", {"type", "pattern", "behavior", "invert"});
  const Json& pattern = member(component, "pattern", name, "pre_tokenizer Split", [](const Json& value) -> const Json& { return value; });
  check_keys(pattern, name, "the pattern of pre_tokenizer Split", {"Regex"});
  if (const std::string behavior = string_member(component, "behavior", name, "pre_tokenizer Split"); behavior != "Isolated")
    refuse(name, "pre_tokenizer Split", "with behavior " + behavior, "Isolated");
  if (flag(component, "invert", false, name, "pre_tokenizer Split")) refuse(name, "pre_tokenizer Split", "with invert", "without");
  return string_member(pattern, "Regex", name, "the pattern of pre_tokenizer Split");
}

}  // namespace

void check_surroundings(const Json& file, const std::string& name) {
  check_keys(file, name, "the file",
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
  const Json* version = present(file, "version");
  if (version == nullptr || !version->is_string() || version->as_string() != "1.0")
    throw DataError(text(name, ": version ", version == nullptr ? "is missing" : version->dump(), ", expected \"1.0\""));
  for (const std::string_view key : {"truncation", "padding"})
    if (present(file, key) != nullptr) throw DataError(text(name, ": ", key, " is not implemented; set it to null"));
  if (const Json* post = present(file, "post_processor")) check_byte_level(*post, name, "post_processor");
  const Json* decoder = present(file, "decoder");
  if (decoder == nullptr) refuse(name, "decoder", "null", "ByteLevel");
  check_byte_level(*decoder, name, "decoder");
}

bool composes(const Json& file, const std::string& name) {
  const Json* normalizer = present(file, "normalizer");
  if (normalizer == nullptr) return false;
  if (type_of(*normalizer) == "Sequence") {
    const Json::Array parts = list_member(*normalizer, "normalizers", name, "normalizer Sequence");
    for (const Json& part : parts)
      if (type_of(part) != "NFC") refuse(name, "normalizer", type_of(part), "NFC or null");
    return !parts.empty();
  }
  if (type_of(*normalizer) != "NFC") refuse(name, "normalizer", type_of(*normalizer), "NFC or null");
  return true;
}

std::string pattern_of(const Json& file, const std::string& name) {
  constexpr std::string_view implemented = "ByteLevel, or a Sequence of one Split and ByteLevel without use_regex";
  const Json* top = present(file, "pre_tokenizer");
  if (top == nullptr) refuse(name, "pre_tokenizer", "null", implemented);
  Json::Array parts{*top};
  if (type_of(*top) == "Sequence") {
    check_keys(*top, name, "pre_tokenizer Sequence", {"type", "pretokenizers"});
    parts = list_member(*top, "pretokenizers", name, "pre_tokenizer Sequence");
  }
  for (const Json& part : parts)
    if (type_of(part) != "Split" && type_of(part) != "ByteLevel") refuse(name, "pre_tokenizer", type_of(part), implemented);
  if (parts.size() == 1 && type_of(parts[0]) == "ByteLevel" && byte_level_splits(parts[0], name)) return std::string(gpt2_pattern);
  if (parts.size() == 2 && type_of(parts[0]) == "Split" && type_of(parts[1]) == "ByteLevel" && !byte_level_splits(parts[1], name))
    return split_pattern(parts[0], name);
  refuse(name, "pre_tokenizer", "of this form", implemented);
}

std::vector<AddedToken> added_tokens(const Json& file, const std::string& name) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> seen;
  if (present(file, "added_tokens") == nullptr) return tokens;
  for (const Json& entry : list_member(file, "added_tokens", name, "the file")) {
    check_keys(entry, name, "an added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = string_member(entry, "content", name, "an added token");
    const std::string where = text("added token \"", token.content, "\"");
    const auto id = member(entry, "id", name, where, [](const Json& value) { return value.as_integer(); });
    if (id < 0 || id > INT32_MAX)
      throw DataError(text(name, ": added token \"", token.content, "\" has the id ", id, ", expected 0 to 2^31 - 1"));
    token.id = static_cast<int32_t>(id);
    if (token.content.empty()) throw DataError(text(name, ": the added token with id ", id, " is empty"));
    if (!seen.insert(token.content).second) throw DataError(text(name, ": added token \"", token.content, "\" is listed twice"));
    token.special = flag(entry, "special", false, name, where);
    token.normalized = flag(entry, "normalized", !token.special, name, where);
    token.left_strip = flag(entry, "lstrip", false, name, where);
    token.right_strip = flag(entry, "rstrip", false, name, where);
    if (flag(entry, "single_word", false, name, where))
      throw DataError(text(name, ": added token \"", token.content, "\": single_word is not implemented"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

bool check_model(const Json& model, const std::string& name) {
  check_keys(model, name, "model",
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
              "ignore_merges", "vocab", "merges"});
  if (present(model, "type") != nullptr)
    if (const std::string type = string_member(model, "type", name, "model"); type != "BPE") refuse(name, "model", type, "BPE");
  if (const Json* dropout = present(model, "dropout"); dropout != nullptr && !(dropout->is_number() && dropout->as_number() == 0.0))
    throw DataError(text(name, ": model.dropout ", dropout->dump(), " is not implemented; the ids would be random"));
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json* value = present(model, key); value != nullptr && !(value->is_string() && value->as_string().empty()))
      throw DataError(text(name, ": model.", key, " ", value->dump(), " is not implemented, only none"));
  if (flag(model, "byte_fallback", false, name, "model")) throw DataError(text(name, ": model.byte_fallback is not implemented"));
  return flag(model, "ignore_merges", false, name, "model");
}

}  // namespace dmuon::tokenizer_components
