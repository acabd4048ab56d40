#include "train/text_stream.h"

#include <algorithm>

#include "data/utf8.h"
#include "dmuon/core/error.h"

namespace dmuon {
namespace {

// Bytes at the end of `text` that a stop string may begin with.
size_t possible_start(std::string_view text, const std::vector<std::string>& stop_strings) {
  size_t longest = 0;
  for (const std::string& stop : stop_strings)
    for (size_t count = std::min(stop.size() - 1, text.size()); count > longest; --count)
      if (text.ends_with(std::string_view(stop).substr(0, count))) longest = count;
  return longest;
}

// Length of `bytes` without a right but unfinished character at its end; invalid bytes before it do not matter.
size_t without_unfinished(std::string_view bytes) {
  for (size_t count = 1; count <= std::min<size_t>(3, bytes.size()); ++count)
    if (const std::string_view end = bytes.substr(bytes.size() - count); utf8::decode(end).incomplete) return bytes.size() - count;
  return bytes.size();
}

}  // namespace

std::string replace_invalid(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const utf8::Decoded decoded = utf8::decode(bytes);
    if (decoded.bytes > 0) {
      out += bytes.substr(0, decoded.bytes);
      bytes.remove_prefix(decoded.bytes);
      continue;
    }
    out += "\uFFFD";
    bytes.remove_prefix(1);
  }
  return out;
}

TextStream::TextStream(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {
  for (const std::string& stop : stop_strings_)
    if (stop.empty()) throw ConfigError("a stop string is empty; leave it out to generate without");
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return "";
  pending_ += bytes;
  size_t first_end = std::string::npos, begin = std::string::npos;
  for (const std::string& stop : stop_strings_) {
    const size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < begin)) first_end = end, begin = at;
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    pending_.resize(begin);
    return finish();
  }
  const std::string_view certain = std::string_view(pending_).substr(0, pending_.size() - possible_start(pending_, stop_strings_));
  const size_t whole = without_unfinished(certain);
  std::string out = replace_invalid(certain.substr(0, whole));
  pending_.erase(0, whole);
  return out;
}

std::string TextStream::finish() {
  std::string out = replace_invalid(pending_);
  pending_.clear();
  return out;
}

}  // namespace dmuon
