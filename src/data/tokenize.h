// What `dmuon_data tokenize` does: text files to token shards, in constant memory, on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/document_reader.h"
#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

enum class DocumentSeparator { automatic, end_of_text, none };  // automatic: end_of_text if the tokenizer has one

struct TokenizeOptions {
  DocumentOptions documents;               // `inputs` already expanded; missing `formats`: by the names, see format_of_input
  std::string output;                      // prefix: PREFIX_000000.bin, ... and PREFIX.json
  TokenFormat format = TokenFormat::llmc;  // llmc (uint16 up to 65,536 ids, else uint32) or nanogpt (uint16 only)
  int64_t shard_tokens = 100'000'000;      // tokens a file; at most 2^31 - 1 for llmc
  DocumentSeparator separator = DocumentSeparator::automatic;  // the id before every document
  int threads = 1;
  bool overwrite = false;  // replace an earlier output of the same prefix
  // Called on the caller's thread, for about every 256 KiB of text, with the bytes of input done and all bytes. What it throws
  // ends the work as any error does.
  std::function<void(int64_t, int64_t)> progress;
};

struct TokenizeResult {
  int64_t tokens = 0;           // with separators
  int64_t documents = 0;        // with text
  int64_t empty_documents = 0;  // without; they leave no trace
  int64_t text_bytes = 0;       // of the documents
  bool separated = false;
  std::vector<std::string> files;
  std::string manifest;
};

// jsonl for *.jsonl and *.ndjson, else text.
InputFormat format_of_input(const std::string& file);

// Writes the shards under temporary names and renames them when all are complete and on disk; the manifest (format,
// counts, tokenizer, files) comes last, so a manifest means a whole data set. The files depend on the input and options,
// not on the number of threads. On any error nothing new remains. DataError for bad text (the first of the input, whatever
// the threads), an existing output without `overwrite`, no end-of-text token where one is asked for, or a vocabulary too large
// for the format; StorageError for the disk.
TokenizeResult tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer);

}  // namespace dmuon
