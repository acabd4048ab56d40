#include "data/tokenize.h"

#include <cstring>
#include <filesystem>

#include "data/manifest.h"
#include "data/ordered_work.h"
#include "data/shard_sequence.h"
#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

namespace fs = std::filesystem;

int id_width(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const bool narrow = tokenizer.vocabulary_size() <= 65536;
  if (options.format == TokenFormat::text) throw ConfigError("tokens are written as llmc or nanogpt, not as text");
  if (options.format == TokenFormat::nanogpt && !narrow)
    throw DataError(text("the ", tokenizer.name(), " tokenizer has ", tokenizer.vocabulary_size(),
                         " ids, nanoGPT's uint16 files hold ids below 65536; write llmc shards instead"));
  return narrow ? 2 : 4;
}

std::optional<int32_t> separator_of(DocumentSeparator separator, const Tokenizer& tokenizer) {
  const std::optional<int32_t> found = tokenizer.end_of_text();
  if (separator == DocumentSeparator::end_of_text && !found)
    throw DataError(
        text("the ", tokenizer.name(), " tokenizer has no end-of-text token to separate documents with; pass --document-separator none"));
  return separator == DocumentSeparator::none ? std::nullopt : found;
}

void refuse_existing(const std::string& prefix) {
  for (const std::string& name : {manifest_name(prefix), shard_name(prefix, 0)})
    if (fs::exists(name)) throw DataError(text(name, " exists already; choose another --output, or pass --overwrite to replace it"));
}

void make_directory_of(const std::string& prefix) {
  const fs::path parent = fs::path(prefix).parent_path();
  std::error_code failure;
  if (!parent.empty()) fs::create_directories(parent, failure);
  if (failure) throw StorageError(text("cannot create the directory ", parent.string(), ": ", failure.message()));
}

int64_t bytes_of(const std::string& input) {
  std::error_code failure;
  const uintmax_t bytes = fs::file_size(input, failure);
  if (failure) throw StorageError(text("cannot read ", input, ": ", failure.message()));
  return static_cast<int64_t>(bytes);
}

// Text that is held at a time, over which one batch may reach: where a tokenizer cannot cut, a batch is a whole document.
constexpr size_t most_bytes_in_flight = size_t{128} << 20;
// A job that grew beyond this gives its memory back.
constexpr size_t most_bytes_kept = size_t{8} << 20;

// A batch of text and what became of it.
struct EncodingJob {
  TextBatch batch;
  std::vector<std::byte> packed;
  TokenizeResult counts;
  std::vector<int32_t> ids;
  std::string decoded;
};

class Encoder {
 public:
  Encoder(const DocumentOptions& options, const Tokenizer& tokenizer, std::optional<int32_t> separator, int width)
      : options_(options), tokenizer_(tokenizer), separator_(separator), width_(static_cast<size_t>(width)) {}

  void encode(EncodingJob& job) const {
    job.counts = {};
    job.counts.empty_documents = job.batch.empty_documents;
    job.ids.clear();
    JsonField field(options_.jsonl_field);
    for (const TextPiece& piece : job.batch.pieces) {
      const std::string& file = options_.inputs[piece.input];
      std::string_view source = std::string_view(job.batch.bytes).substr(piece.begin, piece.size);
      if (piece.json) {
        decode_line(field, source, piece, job.decoded);
        source = job.decoded;
      }
      if (source.empty()) {
        ++job.counts.empty_documents;
        continue;
      }
      if (piece.begins_document) {
        ++job.counts.documents;
        if (separator_) job.ids.push_back(*separator_);
      }
      job.counts.text_bytes += std::ssize(source);
      tokenizer_.encode(source, piece.line > 0 ? origin_of(file, piece.line) : file, piece.json ? 0 : piece.offset, job.ids);
    }
    job.counts.tokens = std::ssize(job.ids);
    job.packed.resize(job.ids.size() * width_);
    for (size_t i = 0; i < job.ids.size(); ++i)  // little-endian: the low bytes come first
      std::memcpy(job.packed.data() + i * width_, &job.ids[i], width_);
  }

 private:
  void decode_line(JsonField& field, std::string_view line, const TextPiece& piece, std::string& out) const {
    const std::string& file = options_.inputs[piece.input];
    if (const size_t valid = utf8::valid_length(line); valid < line.size())
      throw DataError(utf8::invalid_message(line.substr(valid), origin_of(file, piece.line), piece.offset + static_cast<int64_t>(valid)));
    out.clear();
    field.begin();
    try {
      field.feed(line, out);
      field.finish();
    } catch (const JsonField::Failure& failure) {
      throw DataError(bad_line_message(file, piece.line, field.position(), failure.what, options_.jsonl_field));
    }
  }

  const DocumentOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<int32_t> separator_;
  size_t width_;
};

Json manifest_of(const TokenizeOptions& options, const Tokenizer& tokenizer, const TokenizeResult& result, Json files, int width) {
  constexpr size_t most_sources = 1000;  // more are only counted: readers of the shards read the manifest
  Json sources = Json::array();
  int64_t source_bytes = 0;
  for (const std::string& input : options.documents.inputs) {
    const int64_t bytes = bytes_of(input);
    source_bytes += bytes;
    if (options.documents.inputs.size() > most_sources) continue;
    Json entry = Json::object();
    entry.set("name", fs::path(input).filename().string());
    entry.set("bytes", bytes);
    sources.push_back(std::move(entry));
  }
  Json manifest = Json::object();
  manifest.set("format", name_of(options.format));
  manifest.set("bytes_per_token", width);
  manifest.set("tokens", result.tokens);
  manifest.set("documents", result.documents);
  manifest.set("empty_documents", result.empty_documents);
  manifest.set("text_bytes", result.text_bytes);
  manifest.set("document_separator", result.separated ? Json(static_cast<int64_t>(*tokenizer.end_of_text())) : Json());
  manifest.set("vocabulary_size", tokenizer.vocabulary_size());
  manifest.set("tokenizer_hash", tokenizer.hash());
  manifest.set("files", std::move(files));
  manifest.set("source_files", std::ssize(options.documents.inputs));
  manifest.set("source_bytes", source_bytes);
  manifest.set("sources", std::move(sources));
  manifest.set("tokenizer", tokenizer.to_json());
  return manifest;
}

}  // namespace

InputFormat format_of_input(const std::string& file) {
  return file.ends_with(".jsonl") || file.ends_with(".ndjson") ? InputFormat::jsonl : InputFormat::text;
}

TokenizeResult tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const int width = id_width(options, tokenizer);
  const int64_t most = options.format == TokenFormat::llmc ? INT32_MAX : INT64_MAX / 2 / width;
  if (options.shard_tokens < 1 || options.shard_tokens > most)
    throw ConfigError(text("a shard of ", options.shard_tokens, " tokens; expected 1 to ", most));
  if (options.threads < 1 || options.threads > 1024) throw ConfigError(text(options.threads, " threads; expected 1 to 1024"));
  const std::optional<int32_t> separator = separator_of(options.separator, tokenizer);
  if (!options.overwrite) refuse_existing(options.output);
  make_directory_of(options.output);
  DocumentOptions documents = options.documents;
  while (documents.formats.size() < documents.inputs.size())
    documents.formats.push_back(format_of_input(documents.inputs[documents.formats.size()]));

  int64_t total = 0;
  for (const std::string& input : documents.inputs) total += bytes_of(input);
  TokenizeResult result;
  result.manifest = manifest_name(options.output);
  result.separated = separator.has_value();
  ShardSequence sequence(options.output, options.format, width, options.shard_tokens);
  DocumentReader reader(documents, tokenizer);
  const Encoder encoder(documents, tokenizer, separator, width);
  OrderedWork<EncodingJob> work(
      options.threads, static_cast<size_t>(options.threads == 1 ? 1 : 4 * options.threads),
      [&](EncodingJob& job) { return reader.next(job.batch); }, [&](EncodingJob& job) { encoder.encode(job); },
      [&](EncodingJob& job) {
        sequence.write(job.packed);
        result.tokens += job.counts.tokens;
        result.documents += job.counts.documents;
        result.empty_documents += job.counts.empty_documents;
        result.text_bytes += job.counts.text_bytes;
        if (options.progress) options.progress(job.batch.read_bytes, total);
        if (job.batch.bytes.capacity() > most_bytes_kept) job = {};
      },
      most_bytes_in_flight, [](const EncodingJob& job) { return job.batch.bytes.size(); });
  work.run();
  sequence.close();
  if (result.tokens == 0) throw DataError(text(join(documents.inputs, ", "), ": no text to tokenize"));

  std::error_code ignored;
  fs::remove(result.manifest, ignored);  // from here until the new one is written, no manifest vouches for the files
  result.files = sequence.publish(options.overwrite);
  write_file_atomically(result.manifest, manifest_of(options, tokenizer, result, sequence.describe(), width).dump(2) + "\n");
  return result;
}

}  // namespace dmuon
