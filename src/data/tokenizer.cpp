#include "dmuon/data/tokenizer.h"

#include "data/byte_tokenizer.h"
#include "data/character_tokenizer.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {

void Tokenizer::encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids) const {
  encode(text, origin, offset, ids, SpecialTokens::plain);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, std::string_view origin, SpecialTokens policy) const {
  std::vector<int32_t> ids;
  encode(text, origin, 0, ids, policy);
  return ids;
}

std::string Tokenizer::hash() const {
  const std::string description = to_json().dump();
  return hash_to_hex(hash_bytes(description.data(), static_cast<int64_t>(description.size())));
}

TokenizerHandle make_byte_tokenizer() { return std::make_shared<ByteTokenizer>(); }

namespace {

TokenizerHandle huggingface_from_json(const Json& description) {
  const Json* list = description.find("files");
  if (list == nullptr || !list->is_array()) throw DataError("description of a Hugging Face tokenizer without the array \"files\"");
  std::vector<TokenizerFile> files;
  for (const Json& entry : list->as_array()) {
    const Json* name = entry.is_object() ? entry.find("name") : nullptr;
    const Json* content = entry.is_object() ? entry.find("content") : nullptr;
    if (name == nullptr || content == nullptr || !name->is_string() || !content->is_string())
      throw DataError("description of a Hugging Face tokenizer: a file without \"name\" and \"content\"");
    files.push_back({name->as_string(), content->as_string()});
  }
  return make_huggingface_tokenizer(std::move(files), "tokenizer");
}

}  // namespace

TokenizerHandle tokenizer_from_json(const Json& description) {
  const Json* type = description.is_object() ? description.find("type") : nullptr;
  if (type == nullptr || !type->is_string())
    throw DataError("tokenizer description without a \"type\"; expected byte, character or huggingface");
  if (type->as_string() == "byte") return make_byte_tokenizer();
  if (type->as_string() == "character") {
    const Json* characters = description.find("characters");
    if (characters == nullptr || !characters->is_string())
      throw DataError("description of a character tokenizer without the string \"characters\"");
    return make_character_tokenizer(characters->as_string());
  }
  if (type->as_string() == "huggingface") return huggingface_from_json(description);
  throw DataError(text("unknown tokenizer type \"", type->as_string(), "\"; expected byte, character or huggingface"));
}

TokenizerHandle read_tokenizer(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return make_huggingface_tokenizer(file);
  if (!std::filesystem::is_regular_file(file, ignored))
    throw DataError(text("tokenizer ", file,
                         ": no such file or folder; expected byte, a tokenizer.json or a folder with one, or the manifest of token files"));
  try {
    const Json content = parse_json(read_file(file), file);
    if (content.is_object() && content.find("model") != nullptr) return make_huggingface_tokenizer(file);
    const Json* inside = content.is_object() ? content.find("tokenizer") : nullptr;
    return tokenizer_from_json(inside != nullptr ? *inside : content);
  } catch (const DataError& failure) {
    throw DataError(std::string_view(failure.what()).starts_with(file) ? failure.what() : text(file, ": ", failure.what()));
  } catch (const ConfigError& failure) {
    throw DataError(text("tokenizer ", failure.what()));
  }
}

}  // namespace dmuon
