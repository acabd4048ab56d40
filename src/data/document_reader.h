// Documents from plain text and JSONL files, front to back, in batches that can be encoded apart from each other.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/json_field.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

enum class InputFormat { text, jsonl };

struct DocumentOptions {
  std::vector<std::string> inputs;
  std::vector<InputFormat> formats;  // of each input
  std::string jsonl_field = "text";  // of every line's object: the document
  std::string separator_line;        // plain text: a line that reads so ends a document; empty: a file is one document
  size_t batch_bytes = size_t{256} << 10;
  size_t longest_line = size_t{1} << 20;  // JSONL: longer lines are decoded by the reader, in pieces
};

// Text that may be encoded by itself: a document or a part that the tokenizer's complete_prefix() allows, or a line of JSONL.
struct TextPiece {
  size_t begin = 0, size = 0;    // inside the batch
  size_t input = 0;              // index of the file
  int64_t offset = 0;            // of its first byte in the file
  int64_t line = 0;              // JSONL: counted from 1
  bool json = false;             // a line whose field is yet to be decoded
  bool begins_document = false;  // for json: always
};

struct TextBatch {
  std::string bytes;
  std::vector<TextPiece> pieces;
  int64_t empty_documents = 0;  // that have no piece
  int64_t read_bytes = 0;       // of all files, up to here
};

// "FILE" or, for JSONL, "FILE: line 7".
std::string origin_of(const std::string& file, int64_t line);
// For a DataError: `what` is wrong at byte `position` of a line of JSONL, and what to do.
std::string bad_line_message(const std::string& file, int64_t line, int64_t position, const std::string& what, const std::string& field);

class DocumentReader {
 public:
  DocumentReader(const DocumentOptions& options, const Tokenizer& tokenizer);
  // Fills `batch`; false when nothing is left. DataError for text without a place to cut it (Tokenizer::longest_stretch())
  // or a bad line that is too long for one batch, StorageError if reading fails; both after what precedes them was handed out.
  bool next(TextBatch& batch);

 private:
  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };

  std::string_view rest() const { return std::string_view(buffer_).substr(start_); }  // read and not handed out
  void open();
  void read_more();
  void close_input();
  void next_text(TextBatch& batch);
  void next_lines(TextBatch& batch);
  void next_of_long_line(TextBatch& batch);
  void add(TextBatch& batch, std::string_view text, int64_t offset, int64_t line);
  void end_document(TextBatch& batch);
  void consume(size_t bytes);
  // Where a line that separates begins, from which on it or what may become one is held back.
  struct Separator {
    size_t begin, end;  // with its line break; end 0: only possibly a separator
  };
  Separator find_separator() const;
  [[noreturn]] void refuse_stretch(int64_t line) const;

  const DocumentOptions& options_;
  const Tokenizer& tokenizer_;
  size_t input_ = 0;
  std::unique_ptr<std::FILE, Close> stream_;
  std::string buffer_;
  size_t start_ = 0;
  bool at_end_ = false;
  int64_t offset_ = 0, line_ = 1;  // of rest() in the file
  bool line_start_ = true;         // rest() begins a line
  bool in_document_ = false;       // the current document has a piece already
  bool after_separator_ = false;   // there was a line that separates: no document comes after the last one
  int64_t read_bytes_ = 0;
  JsonField field_;
  bool in_long_line_ = false;
  std::string decoded_;  // of the long line, not handed out
  int64_t decoded_offset_ = 0;
  std::exception_ptr failure_;  // of the next call
};

}  // namespace dmuon
