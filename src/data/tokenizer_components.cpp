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

bool flag(const Json& object, std::string_view key, bool otherwise) {
  const Json* value = present(object, key);
  return value == nullptr ? otherwise : value->as_bool();
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
  if (flag(component, "add_prefix_space", true)) refuse(name, "pre_tokenizer ByteLevel", "with add_prefix_space", "without");
  return flag(component, "use_regex", true);
}

std::string split_pattern(const Json& component, const std::string& name) {
  check_keys(component, name, "pre_tokenizer Split", {"type", "pattern", "behavior", "invert"});
  const Json& pattern = component.at("pattern");
  check_keys(pattern, name, "the pattern of pre_tokenizer Split", {"Regex"});
  if (component.at("behavior").as_string() != "Isolated")
    refuse(name, "pre_tokenizer Split", "with behavior " + component.at("behavior").as_string(), "Isolated");
  if (flag(component, "invert", false)) refuse(name, "pre_tokenizer Split", "with invert", "without");
  return pattern.at("Regex").as_string();
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
    const Json::Array& parts = normalizer->at("normalizers").as_array();
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
  std::vector<const Json*> parts;
  if (type_of(*top) == "Sequence") {
    check_keys(*top, name, "pre_tokenizer Sequence", {"type", "pretokenizers"});
    for (const Json& part : top->at("pretokenizers").as_array()) parts.push_back(&part);
  } else {
    parts.push_back(top);
  }
  for (const Json* part : parts)
    if (type_of(*part) != "Split" && type_of(*part) != "ByteLevel") refuse(name, "pre_tokenizer", type_of(*part), implemented);
  if (parts.size() == 1 && type_of(*parts[0]) == "ByteLevel" && byte_level_splits(*parts[0], name)) return std::string(gpt2_pattern);
  if (parts.size() == 2 && type_of(*parts[0]) == "Split" && type_of(*parts[1]) == "ByteLevel" && !byte_level_splits(*parts[1], name))
    return split_pattern(*parts[0], name);
  refuse(name, "pre_tokenizer", "of this form", implemented);
}

std::vector<AddedToken> added_tokens(const Json& file, const std::string& name) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> seen;
  const Json* list = present(file, "added_tokens");
  if (list == nullptr) return tokens;
  for (const Json& entry : list->as_array()) {
    check_keys(entry, name, "an added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = entry.at("content").as_string();
    const int64_t id = entry.at("id").as_integer();
    if (id < 0 || id > INT32_MAX)
      throw DataError(text(name, ": added token \"", token.content, "\" has the id ", id, ", expected 0 to 2^31 - 1"));
    token.id = static_cast<int32_t>(id);
    if (token.content.empty()) throw DataError(text(name, ": the added token with id ", id, " is empty"));
    if (!seen.insert(token.content).second) throw DataError(text(name, ": added token \"", token.content, "\" is listed twice"));
    token.special = flag(entry, "special", false);
    token.normalized = flag(entry, "normalized", !token.special);
    token.left_strip = flag(entry, "lstrip", false);
    token.right_strip = flag(entry, "rstrip", false);
    if (flag(entry, "single_word", false))
      throw DataError(text(name, ": added token \"", token.content, "\": single_word is not implemented"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

bool check_model(const Json& model, const std::string& name) {
  check_keys(model, name, "model",
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
              "ignore_merges", "vocab", "merges"});
  if (const Json* type = present(model, "type"); type != nullptr && type->as_string() != "BPE")
    refuse(name, "model", type->as_string(), "BPE");
  if (const Json* dropout = present(model, "dropout"); dropout != nullptr && dropout->as_number() != 0.0)
    throw DataError(text(name, ": model.dropout ", dropout->dump(), " is not implemented; the ids would be random"));
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json* value = present(model, key); value != nullptr && !value->as_string().empty())
      throw DataError(text(name, ": model.", key, " \"", value->as_string(), "\" is not implemented, only none"));
  if (flag(model, "byte_fallback", false)) throw DataError(text(name, ": model.byte_fallback is not implemented"));
  return flag(model, "ignore_merges", false);
}

}  // namespace dmuon::tokenizer_components
