#include "dmuon/data/token_source.h"

#include <algorithm>
#include <cstring>

#include "data/text_reader.h"
#include "data/token_file.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Ids of one file, in its mapping or in memory of our own.
struct Segment {
  std::shared_ptr<const MappedFile> mapped;
  std::vector<std::byte> owned;
  const std::byte* ids = nullptr;
  TokenLayout layout;
  int64_t first = 0;  // position of its first token in the source
};

template <class Id>
int64_t widen(const std::byte* ids, uint32_t limit, std::span<int32_t> out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    Id id;
    std::memcpy(&id, ids + i * sizeof(Id), sizeof(Id));
    largest = std::max<uint32_t>(largest, id);
    out[i] = static_cast<int32_t>(id);
  }
  if (largest < limit) return -1;
  return std::find_if(out.begin(), out.end(), [&](int32_t id) { return static_cast<uint32_t>(id) >= limit; }) - out.begin();
}

// Copies ids of `width` bytes; returns the index of the first one not below `limit`, or -1.
int64_t widen(int width, const std::byte* ids, uint32_t limit, std::span<int32_t> out) {
  if (width == 1) return widen<uint8_t>(ids, limit, out);
  return width == 2 ? widen<uint16_t>(ids, limit, out) : widen<uint32_t>(ids, limit, out);
}

class FileSource : public TokenSource {
 public:
  FileSource(std::span<const std::string> names, TokenFormat format, const TokenizerHandle& tokenizer, int64_t vocabulary_size)
      : format_(format),
        limit_(vocabulary_size > 0 ? static_cast<uint32_t>(std::min<int64_t>(vocabulary_size, int64_t{1} << 31)) : 1u << 31) {
    for (const std::string& name : names) {
      Segment segment;
      segment.mapped = std::make_shared<MappedFile>(name);
      const std::span<const std::byte> bytes = segment.mapped->bytes();
      TokenFile file{name, static_cast<int64_t>(bytes.size()), 0, sampled_hash(bytes)};
      if (format == TokenFormat::text)
        add_text(name, *tokenizer, segment);
      else
        segment.layout = token_layout(format, name, bytes);
      if (segment.owned.empty()) segment.ids = bytes.data() + segment.layout.header;
      segment.first = tokens_;
      tokens_ += file.tokens = segment.layout.tokens;
      files_.push_back(std::move(file));
      segments_.push_back(std::move(segment));
    }
  }

  int64_t tokens() const override { return tokens_; }
  TokenFormat format() const override { return format_; }
  const std::vector<TokenFile>& files() const override { return files_; }

  void read(int64_t first, std::span<int32_t> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    if (first < 0 || first > tokens_ || count > tokens_ - first)
      throw DataError(text("tokens [", first, ", ", first, " + ", count, ") requested of data that hold ", tokens_));
    auto segment =
        std::upper_bound(segments_.begin(), segments_.end(), first, [](int64_t at, const Segment& s) { return at < s.first; }) - 1;
    for (int64_t done = 0; done < count; ++segment) {
      const int64_t index = first + done - segment->first;
      const int64_t take = std::min(count - done, segment->layout.tokens - index);
      const std::span<int32_t> part = out.subspan(static_cast<size_t>(done), static_cast<size_t>(take));
      const int width = segment->layout.width;
      if (const int64_t bad = widen(width, segment->ids + index * width, limit_, part); bad >= 0)
        refuse(*segment, index + bad, static_cast<uint32_t>(part[static_cast<size_t>(bad)]));
      done += take;
    }
  }

 private:
  void add_text(const std::string& name, const Tokenizer& tokenizer, Segment& segment) {
    if (segment.mapped->bytes().empty()) throw DataError(text(name, ": the file is empty; expected text"));
    if (tokenizer.name() == "byte") {
      segment.layout = {0, 1, static_cast<int64_t>(segment.mapped->bytes().size())};
      return;
    }
    const int width = tokenizer.vocabulary_size() <= 256 ? 1 : tokenizer.vocabulary_size() <= 65536 ? 2 : 4;
    std::vector<std::byte>& packed = segment.owned;
    std::vector<int32_t> ids;
    read_text(
        name, [&](std::string_view piece) { return tokenizer.complete_prefix(piece); },
        [&](std::string_view piece, int64_t offset) {
          ids.clear();
          tokenizer.encode(piece, name, offset, ids);
          const size_t start = packed.size();
          packed.resize(start + ids.size() * static_cast<size_t>(width));
          // Little-endian: the low bytes come first.
          for (size_t i = 0; i < ids.size(); ++i)
            std::memcpy(packed.data() + start + i * static_cast<size_t>(width), &ids[i], static_cast<size_t>(width));
        });
    packed.shrink_to_fit();
    segment.layout = {0, width, static_cast<int64_t>(packed.size()) / width};
    segment.ids = packed.data();
    segment.mapped.reset();
  }

  [[noreturn]] void refuse(const Segment& segment, int64_t index, uint32_t id) const {
    const TokenFile& file = files_[static_cast<size_t>(&segment - segments_.data())];
    throw DataError(text(file.name, ": token id ", id, " at token ", index, " (byte offset ",
                         segment.layout.header + index * segment.layout.width, "), expected ids below the vocabulary of ", limit_,
                         "; the file belongs to another tokenizer or is damaged, or the model's vocabulary is too small"));
  }

  TokenFormat format_;
  uint32_t limit_;
  int64_t tokens_ = 0;
  std::vector<Segment> segments_;
  std::vector<TokenFile> files_;
};

class Slice : public TokenSource {
 public:
  Slice(TokenSourceHandle source, int64_t first, int64_t count) : source_(std::move(source)), first_(first), count_(count) {}
  int64_t tokens() const override { return count_; }
  TokenFormat format() const override { return source_->format(); }
  const std::vector<TokenFile>& files() const override { return source_->files(); }
  void read(int64_t first, std::span<int32_t> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    if (first < 0 || first > count_ || count > count_ - first)
      throw DataError(text("tokens [", first, ", ", first, " + ", count, ") requested of data that hold ", count_));
    source_->read(first_ + first, out);
  }

 private:
  TokenSourceHandle source_;
  int64_t first_, count_;
};

}  // namespace

std::string_view name_of(TokenFormat format) {
  return format == TokenFormat::text ? "text" : format == TokenFormat::nanogpt ? "nanogpt" : "llmc";
}

TokenFormat detect_format(std::span<const std::string> files, std::string_view format) {
  if (files.empty()) throw DataError("no data files given; set data.train");
  const TokenFormat common = detect_format(files[0], format);
  for (const std::string& file : files)
    if (const TokenFormat found = detect_format(file, format); found != common)
      throw DataError(text(file, ": found format ", name_of(found), ", but ", files[0], " is ", name_of(common),
                           "; files of one data set must share a format (data.format overrides the detection)"));
  return common;
}

TokenSourceHandle open_tokens(std::span<const std::string> files, TokenFormat format, TokenizerHandle tokenizer, int64_t vocabulary_size) {
  if (format == TokenFormat::text && !tokenizer)
    throw DataError(text(files[0], ": text needs a tokenizer; set data.tokenizer to character or byte"));
  if (tokenizer && vocabulary_size > 0 && tokenizer->vocabulary_size() > vocabulary_size)
    throw DataError(text("the ", tokenizer->name(), " tokenizer has ", tokenizer->vocabulary_size(),
                         " ids, more than the model's vocabulary of ", vocabulary_size, "; raise the model's vocabulary size"));
  return std::make_shared<FileSource>(files, format, tokenizer, vocabulary_size);
}

TokenSourceHandle slice(TokenSourceHandle source, int64_t first, int64_t count) {
  if (first < 0 || count < 0 || first > source->tokens() || count > source->tokens() - first)
    throw DataError(text("slice [", first, ", ", first, " + ", count, ") of data that hold ", source->tokens(), " tokens"));
  return std::make_shared<Slice>(std::move(source), first, count);
}

}  // namespace dmuon
