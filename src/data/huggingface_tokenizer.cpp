// Byte-level BPE from the files of the Hugging Face libraries. The files are not trusted.
#include <filesystem>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "data/byte_symbols.h"
#include "data/tokenizer_components.h"
#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t largest_file = int64_t{64} << 20;
using Pair = std::pair<std::string, std::string>;
using Vocabulary = std::unordered_map<std::string, int32_t>;  // by the characters of the file

const TokenizerFile* find(const std::vector<TokenizerFile>& files, std::string_view name) {
  for (const TokenizerFile& file : files)
    if (file.name == name) return &file;
  return nullptr;
}

Vocabulary read_vocabulary(const Json& object, const std::string& name) {
  if (!object.is_object()) throw DataError(text(name, ": the vocabulary is ", object.type_name(), ", expected an object"));
  Vocabulary vocabulary;
  vocabulary.reserve(object.as_object().size());
  for (const auto& [token, value] : object.as_object()) {
    if (!value.is_integer() || value.is_negative() || value.as_unsigned() > INT32_MAX)
      throw DataError(text(name, ": token \"", token, "\" has the id ", value.dump(), ", expected an integer from 0 to 2^31 - 1"));
    vocabulary.emplace(token, static_cast<int32_t>(value.as_integer()));
  }
  return vocabulary;
}

Pair split_merge(std::string_view line, const std::string& name, int64_t number) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != std::string_view::npos)
    throw DataError(text(name, ": merge ", number, " is \"", line, "\", expected two tokens with one space between them"));
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<Pair> read_merges(const Json& list, const std::string& name) {
  if (!list.is_array()) throw DataError(text(name, ": merges is ", list.type_name(), ", expected an array"));
  std::vector<Pair> merges;
  merges.reserve(list.as_array().size());
  for (const Json& entry : list.as_array()) {
    const int64_t number = std::ssize(merges) + 1;
    if (entry.is_string()) {
      merges.push_back(split_merge(entry.as_string(), name, number));
    } else if (entry.is_array() && entry.as_array().size() == 2 && entry.as_array()[0].is_string() && entry.as_array()[1].is_string()) {
      merges.emplace_back(entry.as_array()[0].as_string(), entry.as_array()[1].as_string());
    } else {
      throw DataError(text(name, ": merge ", number, " is neither \"a b\" nor [\"a\", \"b\"]"));
    }
  }
  return merges;
}

// merges.txt, once called vocab.bpe: a line each, after a line that begins with #version.
std::vector<Pair> read_merge_lines(std::string_view content, const std::string& name) {
  std::vector<Pair> merges;
  bool first = true;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool version = std::exchange(first, false) && line.starts_with("#version");
    if (version || line.empty()) continue;
    if (utf8::complete_prefix(line) != line.size() || utf8::replace_invalid(line) != line)
      throw DataError(text(name, ": merge ", merges.size() + 1, " is not valid UTF-8"));
    merges.push_back(split_merge(line, name, std::ssize(merges) + 1));
  }
  return merges;
}

// Ids must be 0, 1, ... without a gap, over vocabulary and added tokens together.
void number_tokens(const Vocabulary& vocabulary, const std::string& name, BpeDescription& out) {
  size_t count = vocabulary.size();
  for (const AddedToken& token : out.added) {
    const auto known = vocabulary.find(token.content);
    count += known == vocabulary.end();
    if (known != vocabulary.end() && known->second != token.id)
      throw DataError(
          text(name, ": added token \"", token.content, "\" has the id ", token.id, ", the vocabulary gives it ", known->second));
  }
  std::vector<const std::string*> names(count, nullptr);
  const auto take = [&](const std::string& token, int32_t id) {
    if (static_cast<size_t>(id) >= count)
      throw DataError(text(name, ": token \"", token, "\" has the id ", id, ", but there are ", count, " tokens; ids must be 0 to ",
                           count - 1, " without a gap"));
    const std::string*& place = names[static_cast<size_t>(id)];
    if (place != nullptr && *place != token)
      throw DataError(text(name, ": the id ", id, " belongs to both \"", *place, "\" and \"", token, "\""));
    place = &token;
  };
  out.bytes.resize(count);
  for (const auto& [token, id] : vocabulary) {
    take(token, id);
    const std::optional<std::string> bytes = byte_symbols::decode(token);
    out.bytes[static_cast<size_t>(id)] = bytes ? *bytes : token;
  }
  for (const AddedToken& token : out.added) {
    take(token.content, token.id);
    out.bytes[static_cast<size_t>(token.id)] = token.content;
  }
}

void add_merges(const Vocabulary& vocabulary, const std::vector<Pair>& merges, const std::string& name, BpeDescription& out) {
  out.merges = MergeTable(std::ssize(merges));
  const auto id_of = [&](const std::string& token, size_t number, std::string_view what) {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end())
      throw DataError(text(name, ": ", what, " \"", token, "\" of merge ", number, " is not in the vocabulary"));
    return found->second;
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    const int32_t a = id_of(left, i + 1, "the left part"), b = id_of(right, i + 1, "the right part");
    if (!out.merges.add(a, b, {static_cast<int32_t>(i), id_of(left + right, i + 1, "the result")}))
      throw DataError(text(name, ": merge ", i + 1, ", \"", left, "\" and \"", right, "\", is listed twice"));
  }
}

void find_bytes(const Vocabulary& vocabulary, const std::string& name, BpeDescription& out) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string symbol;
    utf8::append(byte_symbols::of(static_cast<unsigned char>(byte)), symbol);
    const auto found = vocabulary.find(symbol);
    if (found == vocabulary.end())
      throw DataError(
          text(name, ": the vocabulary has no token for the byte ", byte, " (\"", symbol, "\"); text with it would have no ids"));
    out.byte_ids[static_cast<size_t>(byte)] = found->second;
  }
}

std::optional<int32_t> separator_of(const std::vector<AddedToken>& tokens) {
  for (const std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    for (const AddedToken& token : tokens)
      if (token.special && token.content == name) return token.id;
  return std::nullopt;
}

void finish(const Vocabulary& vocabulary, const std::vector<Pair>& merges, const std::string& name, BpeDescription& out) {
  number_tokens(vocabulary, name, out);
  find_bytes(vocabulary, name, out);
  add_merges(vocabulary, merges, name, out);
  for (const AddedToken& token : out.added)
    if (token.normalized && out.compose)
      throw DataError(text(name, ": added token \"", token.content, "\": normalized is not implemented together with the normalizer NFC"));
  out.end_of_text = separator_of(out.added);
}

BpeDescription from_tokenizer_json(const std::string& content, const std::string& name) {
  const Json file = parse_json(content, name);
  BpeDescription out;
  tokenizer_components::check_surroundings(file, name);
  out.compose = tokenizer_components::composes(file, name);
  out.pattern = tokenizer_components::pattern_of(file, name);
  out.added = tokenizer_components::added_tokens(file, name);
  const auto itself = [](const Json& value) -> const Json& { return value; };
  const Json& model = tokenizer_components::member(file, "model", name, "the file", itself);
  const bool ignore_merges = tokenizer_components::check_model(model, name);
  const Vocabulary vocabulary = read_vocabulary(tokenizer_components::member(model, "vocab", name, "model", itself), name);
  finish(vocabulary, read_merges(tokenizer_components::member(model, "merges", name, "model", itself), name), name, out);
  if (ignore_merges)
    for (const auto& [token, id] : vocabulary)
      if (byte_symbols::decode(token)) out.whole_words.emplace(out.bytes[static_cast<size_t>(id)], id);
  return out;
}

BpeDescription from_gpt2_files(const std::string& vocabulary_json, const std::string& merge_lines, const std::string& name) {
  BpeDescription out;
  out.pattern = std::string(gpt2_pattern);
  const Vocabulary vocabulary = read_vocabulary(parse_json(vocabulary_json, name), name);
  // The one special token of these files, which nothing in them marks.
  const std::string separator = "<|endoftext|>";
  if (const auto found = vocabulary.find(separator); found != vocabulary.end())
    out.added.push_back({.id = found->second, .content = separator, .special = true});
  finish(vocabulary, read_merge_lines(merge_lines, name), name, out);
  return out;
}

// Vocabulary and merges alone could be those of another family, with other words and NFC.
void check_class(const std::vector<TokenizerFile>& files, const std::string& origin) {
  const TokenizerFile* file = find(files, "tokenizer_config.json");
  if (file == nullptr) return;
  const Json config = parse_json(file->content, origin);
  const Json* found = config.is_object() ? config.find("tokenizer_class") : nullptr;
  if (found != nullptr && found->is_string() && found->as_string() != "GPT2Tokenizer" && found->as_string() != "GPT2TokenizerFast")
    throw DataError(text(origin, ": vocabulary and merges without a tokenizer.json are read as GPT-2's, tokenizer_config.json says ",
                         found->as_string(), "; save tokenizer.json too"));
}

std::string named(std::string_view message, const std::string& origin) {
  return message.starts_with(origin) ? std::string(message) : text(origin, ": ", message);
}

}  // namespace

TokenizerHandle make_huggingface_tokenizer(std::vector<TokenizerFile> files, const std::string& origin) {
  BpeDescription description;
  try {
    const TokenizerFile *json = find(files, "tokenizer.json"), *vocabulary = find(files, "vocab.json"), *merges = find(files, "merges.txt");
    if (json != nullptr) {
      description = from_tokenizer_json(json->content, origin);
      description.hash = hash_to_hex(hash_bytes(json->content.data(), std::ssize(json->content)));
    } else if (vocabulary != nullptr && merges != nullptr) {
      check_class(files, origin);
      description = from_gpt2_files(vocabulary->content, merges->content, origin);
      const uint64_t half = hash_bytes(vocabulary->content.data(), std::ssize(vocabulary->content));
      description.hash = hash_to_hex(hash_bytes(merges->content.data(), std::ssize(merges->content), half));
    } else {
      throw DataError(text(origin, ": neither a tokenizer.json nor encoder.json and vocab.bpe (or vocab.json and merges.txt)"));
    }
    description.files = std::move(files);
    return std::make_shared<BpeTokenizer>(std::move(description));
  } catch (const ConfigError& failure) {  // what the JSON reader throws
    throw DataError(named(failure.what(), origin));
  } catch (const DataError& failure) {  // the pattern's knows no file
    throw DataError(named(failure.what(), origin));
  }
}

TokenizerHandle make_huggingface_tokenizer(const std::string& directory_or_file) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<TokenizerFile> files;
  if (!fs::is_directory(directory_or_file, ignored)) {
    files.push_back({"tokenizer.json", read_file(directory_or_file, largest_file)});
    return make_huggingface_tokenizer(std::move(files), directory_or_file);
  }
  // The second name is the one that GPT-2 was published with; export uses the first, which the libraries look for.
  constexpr std::pair<const char*, const char*> names[] = {
      {"tokenizer.json", nullptr},        {"vocab.json", "encoder.json"},       {"merges.txt", "vocab.bpe"},
      {"tokenizer_config.json", nullptr}, {"special_tokens_map.json", nullptr}, {"added_tokens.json", nullptr},
      {"chat_template.jinja", nullptr},
  };
  for (const auto& [name, earlier] : names)
    for (const char* candidate : {name, earlier}) {
      if (candidate == nullptr || !fs::is_regular_file(fs::path(directory_or_file) / candidate, ignored)) continue;
      files.push_back({name, read_file(fs::path(directory_or_file) / candidate, largest_file)});
      break;
    }
  return make_huggingface_tokenizer(std::move(files), directory_or_file);
}

}  // namespace dmuon
