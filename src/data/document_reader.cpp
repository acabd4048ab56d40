#include "data/document_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::string origin_of(const std::string& file, int64_t line) { return line > 0 ? text(file, ": line ", line) : file; }

std::string bad_line_message(const std::string& file, int64_t line, int64_t position, const std::string& what, const std::string& field) {
  return text(origin_of(file, line), ", byte ", position, ": ", what,
              "; every line must be a JSON object with the document in the string \"", field,
              "\" (another one: --jsonl-field): correct or remove the line");
}

DocumentReader::DocumentReader(const DocumentOptions& options, const Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer), field_(options.jsonl_field) {}

bool DocumentReader::next(TextBatch& batch) {
  batch.bytes.clear();
  batch.pieces.clear();
  batch.empty_documents = 0;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  try {
    while (input_ < options_.inputs.size() && batch.bytes.size() < options_.batch_bytes) {
      if (!stream_) open();
      if (options_.formats[input_] == InputFormat::text)
        next_text(batch);
      else if (in_long_line_)
        next_of_long_line(batch);
      else
        next_lines(batch);
    }
  } catch (const Error&) {
    // What precedes it may be wrong too, and comes first.
    if (batch.pieces.empty()) throw;
    failure_ = std::current_exception();
  }
  batch.read_bytes = read_bytes_;
  return !batch.pieces.empty() || batch.empty_documents > 0;
}

void DocumentReader::open() {
  const std::string& file = options_.inputs[input_];
  stream_.reset(std::fopen(file.c_str(), "rbe"));
  if (!stream_) throw StorageError(text("cannot read ", file, ": ", std::strerror(errno)));
  std::setvbuf(stream_.get(), nullptr, _IONBF, 0);  // reads are large
  buffer_.clear();
  start_ = 0;
  at_end_ = false;
  offset_ = 0;
  line_ = 1;
  line_start_ = true;
  in_document_ = after_separator_ = false;
}

// As much again as there is, so that looking again and again for a place to cut costs no more than twice the text.
void DocumentReader::read_more() {
  buffer_.erase(0, start_);
  start_ = 0;
  const size_t held = buffer_.size();
  const auto limit = static_cast<size_t>(tokenizer_.longest_stretch());
  const size_t wanted = std::max(options_.batch_bytes, std::min(held, limit - std::min(held, limit)));
  buffer_.resize(held + wanted);
  const size_t got = std::fread(buffer_.data() + held, 1, wanted, stream_.get());
  if (std::ferror(stream_.get())) throw StorageError(text("cannot read ", options_.inputs[input_], ": ", std::strerror(errno)));
  buffer_.resize(held + got);
  read_bytes_ += static_cast<int64_t>(got);
  at_end_ = got < wanted;
}

void DocumentReader::close_input() {
  stream_.reset();
  ++input_;
}

void DocumentReader::add(TextBatch& batch, std::string_view piece, int64_t offset, int64_t line) {
  if (piece.empty()) return;
  batch.pieces.push_back({batch.bytes.size(), piece.size(), input_, offset, line, false, !in_document_});
  batch.bytes += piece;
  in_document_ = true;
}

void DocumentReader::end_document(TextBatch& batch) {
  if (!std::exchange(in_document_, false)) ++batch.empty_documents;
}

void DocumentReader::consume(size_t bytes) {
  if (bytes == 0) return;
  line_start_ = rest()[bytes - 1] == '\n';
  offset_ += static_cast<int64_t>(bytes);
  start_ += bytes;
}

DocumentReader::Separator DocumentReader::find_separator() const {
  const std::string_view buffer = rest(), line = options_.separator_line;
  if (line.empty()) return {buffer.size(), 0};
  for (size_t at = 0; (at = buffer.find(line, at)) != std::string_view::npos; ++at) {
    if (at == 0 ? !line_start_ : buffer[at - 1] != '\n') continue;
    std::string_view after = buffer.substr(at + line.size());
    if (after.starts_with('\r')) after.remove_prefix(1);
    if (after.starts_with('\n')) return {at, buffer.size() - after.size() + 1};
    if (after.empty()) return {at, at_end_ ? buffer.size() : 0};
  }
  // The last line may become one with what follows.
  const size_t last_break = buffer.rfind('\n');
  const size_t last = last_break == std::string_view::npos ? 0 : last_break + 1;
  const bool possible = !at_end_ && (last > 0 || line_start_) && line.starts_with(buffer.substr(last));
  return {possible ? last : buffer.size(), 0};
}

void DocumentReader::next_text(TextBatch& batch) {
  if (!at_end_ && rest().size() < options_.batch_bytes) read_more();
  for (;;) {
    const Separator separator = find_separator();
    const std::string_view ahead = rest().substr(0, separator.begin);
    if (separator.end > 0) {
      add(batch, ahead, offset_, 0);
      consume(separator.end);
      after_separator_ = true;
      return end_document(batch);
    }
    if (at_end_) {
      add(batch, ahead, offset_, 0);
      if (!after_separator_ || in_document_) end_document(batch);
      return close_input();
    }
    if (const size_t cut = ahead.empty() ? 0 : tokenizer_.complete_prefix(ahead); cut > 0) {
      add(batch, ahead.substr(0, cut), offset_, 0);
      return consume(cut);
    }
    if (std::ssize(rest()) > tokenizer_.longest_stretch()) refuse_stretch(0);
    read_more();
  }
}

void DocumentReader::next_lines(TextBatch& batch) {
  if (!at_end_ && rest().size() < options_.batch_bytes) read_more();
  size_t done = 0;
  for (const std::string_view buffer = rest(); done < buffer.size();) {
    const size_t found = buffer.find('\n', done);
    if (found == std::string_view::npos && !at_end_) break;
    const size_t end = std::min(found, buffer.size());
    // An empty line is kept for the error that it makes.
    batch.pieces.push_back({batch.bytes.size(), end - done, input_, offset_ + static_cast<int64_t>(done), line_++, true, true});
    batch.bytes += buffer.substr(done, end - done);
    done = std::min(end + 1, buffer.size());
  }
  consume(done);
  if (at_end_) {
    close_input();
  } else if (rest().size() >= options_.longest_line) {
    in_long_line_ = true;
    field_.begin();
    decoded_offset_ = 0;
  } else if (done == 0) {
    read_more();
  }
}

void DocumentReader::next_of_long_line(TextBatch& batch) {
  const std::string& file = options_.inputs[input_];
  const size_t most = std::max<size_t>(options_.batch_bytes, 4);  // a character at least
  const std::string_view ahead = rest().substr(0, most);
  const size_t found = ahead.find('\n');
  const bool ends = found != std::string_view::npos || (at_end_ && ahead.size() == rest().size());
  std::string_view piece = ahead.substr(0, found);
  if (!ends) piece = piece.substr(0, utf8::complete_prefix(piece));
  if (const size_t valid = utf8::valid_length(piece); valid < piece.size())
    throw DataError(utf8::invalid_message(piece.substr(valid), origin_of(file, line_), offset_ + static_cast<int64_t>(valid)));
  try {
    field_.feed(piece, decoded_);
    if (ends) field_.finish();
  } catch (const JsonField::Failure& failure) {
    throw DataError(bad_line_message(file, line_, field_.position(), failure.what, options_.jsonl_field));
  }
  consume(ends ? std::min(piece.size() + 1, rest().size()) : piece.size());
  const size_t cut = ends ? decoded_.size() : decoded_.size() < options_.batch_bytes ? 0 : tokenizer_.complete_prefix(decoded_);
  if (cut == 0 && std::ssize(decoded_) > tokenizer_.longest_stretch()) refuse_stretch(line_);
  add(batch, std::string_view(decoded_).substr(0, cut), decoded_offset_, line_);
  decoded_offset_ += static_cast<int64_t>(cut);
  decoded_.erase(0, cut);
  if (!ends) {
    if (!at_end_ && rest().size() < most) read_more();
    return;
  }
  end_document(batch);
  ++line_;
  in_long_line_ = false;
  if (at_end_ && rest().empty()) close_input();
}

void DocumentReader::refuse_stretch(int64_t line) const {
  const int64_t limit = tokenizer_.longest_stretch();
  const std::string place = line > 0 ? text(origin_of(options_.inputs[input_], line), ", at byte ", decoded_offset_, " of its text")
                                     : text(options_.inputs[input_], ": at byte offset ", offset_);
  throw DataError(text(place, ": more than ", format_bytes(limit), " without a place at which the ", tokenizer_.name(),
                       " tokenizer can cut; is this text? Divide the document: several files, JSONL, or --separator-line"));
}

}  // namespace dmuon
