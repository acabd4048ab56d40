#include "fuzz/targets.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "data/document_reader.h"
#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "dmuon/data/tokenizer.h"
#include "dmuon/io/huggingface.h"
#include "models/gpt2_huggingface.h"
#include "models/qwen_huggingface.h"

namespace dmuon::fuzz {
namespace {

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// A folder of this process, made once.
const Path& folder() {
  static const Path path = [] {
    std::string pattern = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm/dmuon-fuzz-XXXXXX" : "/tmp/dmuon-fuzz-XXXXXX";
    demand(mkdtemp(pattern.data()) != nullptr, "no temporary folder");
    static std::string made = pattern;
    std::atexit([] { std::filesystem::remove_all(made); });
    return Path(made);
  }();
  return path;
}

void put(const Path& path, std::string_view content) {
  FILE* file = std::fopen(path.c_str(), "wb");
  demand(file != nullptr, "cannot write");
  if (!content.empty()) std::fwrite(content.data(), 1, content.size(), file);
  std::fclose(file);
}

// Every accepted tensor can be read, its size is that of its shape, and it lies in the file.
void read_all(const SafetensorsReader& reader) {
  int64_t bytes = 0;
  for (const SafetensorsEntry& entry : reader.entries()) {
    demand(entry.offset >= 8 && entry.bytes >= 0 && entry.offset + entry.bytes <= reader.file_bytes(), "a tensor leaves its file");
    if (entry.element_type) demand(entry.bytes == entry.shape.elements() * size_of(*entry.element_type), "a tensor of another size");
    std::vector<char> data(static_cast<size_t>(entry.bytes));
    reader.read(entry.name, data.data(), entry.bytes);
    bytes += entry.bytes;
  }
  demand(bytes < reader.file_bytes(), "tensors larger than their file");
}

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all = {{"gpt2", {}, gpt2_huggingface()}, {"qwen", {}, qwen_huggingface()}};
  return all;
}

struct Documents {
  std::vector<std::string> texts;
  int64_t empty = 0;
  bool operator==(const Documents&) const = default;
};

// The documents of a file, or nothing where it is refused.
std::optional<Documents> read_documents(const DocumentOptions& options) {
  static const TokenizerHandle tokenizer = make_byte_tokenizer();
  Documents documents;
  bool open = false;  // the last document has begun
  try {
    DocumentReader reader(options, *tokenizer);
    for (TextBatch batch; reader.next(batch);) {
      for (const TextPiece& piece : batch.pieces) {
        demand(piece.begin <= batch.bytes.size() && piece.size <= batch.bytes.size() - piece.begin, "a piece outside its batch");
        const std::string_view source = std::string_view(batch.bytes).substr(piece.begin, piece.size);
        demand(piece.begins_document || open, "a piece of no document");
        if (piece.begins_document) documents.texts.emplace_back();
        open = true;
        if (!piece.json) {
          documents.texts.back() += source;
          continue;
        }
        if (utf8::valid_length(source) < source.size()) return std::nullopt;
        JsonField field(options.jsonl_field);
        field.begin();
        field.feed(source, documents.texts.back());
        field.finish();
      }
      documents.empty += batch.empty_documents;
    }
  } catch (const Error&) {
    return std::nullopt;
  } catch (const JsonField::Failure&) {
    return std::nullopt;
  }
  documents.empty += static_cast<int64_t>(std::erase(documents.texts, std::string()));
  return documents;
}

// What a line of JSONL holds, by the parser of whole objects; nothing where that refuses it.
std::optional<std::string> parsed_field(std::string_view line, const std::string& name) {
  try {
    const Json object = parse_json(line, "line");
    const Json* field = object.is_object() ? object.find(name) : nullptr;
    if (field != nullptr && field->is_string()) return field->as_string();
  } catch (const Error&) {
  }
  return std::nullopt;
}

}  // namespace

void safetensors(std::string_view input) {
  // The planted bug looks for the header's end where a small length prefix says it is.
  if (planted_bug && input.size() >= 8 && input[1] == 0) {
    volatile char last = input.data()[7 + static_cast<unsigned char>(input[0])];
    static_cast<void>(last);
  }
  const Path file = folder() / "model.safetensors";
  put(file, input);
  try {
    read_all(SafetensorsReader(file));
  } catch (const Error&) {
  }
}

void shards(std::string_view input) {
  if (input.size() < 2) return;
  const size_t length = static_cast<unsigned char>(input[0]) + 256U * static_cast<unsigned char>(input[1]);
  if (planted_bug && length > 0) {  // it trusts the length in front of the index
    volatile char last = input.data()[1 + length];
    static_cast<void>(last);
  }
  put(folder() / "model.safetensors.index.json", input.substr(2, length));
  put(folder() / "a.safetensors", input.size() - 2 > length ? input.substr(2 + length) : std::string_view());
  try {
    const HuggingFaceFiles files(folder());
    for (const std::string& name : files.names()) {
      const HuggingFaceFiles::Location* location = files.find(name);
      demand(location != nullptr && location->entry->name == name, "a listed tensor that cannot be found");
      demand(location->file->path().parent_path() == folder(), "a shard outside the directory");
      read_all(*location->file);
    }
  } catch (const Error&) {
  }
}

void config(std::string_view input) {
  try {
    const HuggingFaceModel model = parse_huggingface_config(input, "config.json", families());
    const Json& s = model.settings;
    const int64_t layers = s.at("layers").as_integer();
    demand(layers >= 1 && layers <= 4096, "layers out of range");
    if (layers > 64) return;  // time, not correctness
    const HuggingFaceLayout layout = model.family.huggingface.layout(s);
    for (const HuggingFaceTensor& tensor : layout.tensors) {
      int64_t rows = 0;
      for (const HuggingFacePart& part : tensor.parts) rows += part.rows;
      demand(rows == tensor.shape[tensor.transposed ? 1 : 0], "the parts of a tensor do not fill it");
    }
    // What is written for these settings reads back as the same settings.
    Json written = model.family.huggingface.config(s);
    demand(!planted_bug || s.at("context_length").as_integer() % 2 == 0, "the planted bug: an odd context length");
    demand(parse_huggingface_config(written.dump(), "written", families()).settings == s, "settings that change in a round trip");
  } catch (const Error&) {
  }
}

void tokenizer(std::string_view input) {
  // Decomposed, so that NFC has something to do; a run of spaces, digits and bytes of every length in UTF-8.
  constexpr std::string_view sample = "ab abc  It's 12 \r\n\xC3\xA9 e\xCC\x81 \xE4\xB8\xAD <|endoftext|>\xF0\x9F\x98\x80   ";
  // The planted bug takes two braces behind the last list for granted.
  if (const size_t list = input.rfind(']'); planted_bug && list != std::string_view::npos) {
    volatile char behind = input.data()[list + 2];
    static_cast<void>(behind);
  }
  try {
    const TokenizerHandle made = make_huggingface_tokenizer({{"tokenizer.json", std::string(input)}}, "fuzz");
    for (const SpecialTokens policy : {SpecialTokens::plain, SpecialTokens::parse}) {
      std::vector<int32_t> ids;
      made->encode(sample, "sample", 0, ids, policy);
      for (const int32_t id : ids) demand(id >= 0 && id < made->vocabulary_size(), "an id outside the vocabulary");
      const std::string back = made->decode_bytes(ids);
      demand(back.size() <= sample.size() + 8, "decoding makes more bytes than were encoded");
    }
    demand(tokenizer_from_json(made->to_json())->hash() == made->hash(), "a description that does not come back");
  } catch (const Error&) {
  }
}

void documents(std::string_view input) {
  if (input.size() < 2) return;
  const auto how = static_cast<unsigned char>(input[0]), longest_line = static_cast<unsigned char>(input[1]);
  const std::string_view content = input.substr(2);
  const Path file = folder() / "documents";
  put(file, content);
  DocumentOptions whole;
  whole.inputs = {file};
  whole.formats = {how % 2 == 1 ? InputFormat::jsonl : InputFormat::text};
  if ((how & 2) != 0) whole.separator_line = "--";
  DocumentOptions pieces = whole;
  pieces.batch_bytes = 1 + how / 4;
  pieces.longest_line = longest_line;
  const auto expected = read_documents(whole), found = read_documents(pieces);
  demand(expected == found, "documents depend on the batches");
  if (planted_bug && found)
    for (const std::string& each : found->texts) demand(each.find('\f') == std::string::npos, "the planted bug: a form feed");
  if (how % 2 == 0) return;
  std::vector<std::string> parsed;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min<size_t>(content.find('\n', at), content.size());
    const auto field = parsed_field(content.substr(at, end - at), whole.jsonl_field);
    if (!field) return;  // the parser refuses more: numbers out of range, other keys that occur twice
    if (!field->empty()) parsed.push_back(*field);
    at = end + 1;
  }
  demand(found && found->texts == parsed, "a document that the JSON parser reads otherwise");
}

std::span<const Target> targets() {
  static constexpr Target all[] = {
      {"safetensors", safetensors}, {"shards", shards}, {"config", config}, {"tokenizer", tokenizer}, {"documents", documents}};
  return all;
}

}  // namespace dmuon::fuzz
