#include "data/decode_documents.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Bytes at the start of `bytes` that continue a character whose beginning is not there: at most three.
size_t orphaned_prefix(std::string_view bytes) {
  size_t count = 0;
  while (count < std::min<size_t>(3, bytes.size()) && (static_cast<unsigned char>(bytes[count]) & 0xC0) == 0x80) ++count;
  return count;
}

}  // namespace

DecodedDocuments decode_documents(const TokenSource& source, const Tokenizer& tokenizer, const std::string& output, bool overwrite,
                                  const std::function<void(int64_t)>& progress) {
  const std::optional<int32_t> separator = tokenizer.end_of_text();
  if (!separator) throw DataError(text("the ", tokenizer.name(), " tokenizer has no token that separates documents"));
  if (!overwrite && std::filesystem::exists(output))
    throw DataError(text(output, " exists already; choose another --output, or pass --overwrite to replace it"));
  constexpr int64_t piece = 1 << 20;
  constexpr size_t longest_document = size_t{256} << 20;
  DecodedDocuments result;
  const std::string temporary = text(output, ".tmp-", getpid());
  OutputFile file(temporary);
  try {
    std::string document;
    bool first = true;
    const auto finish = [&](bool last) {
      std::string_view content = document;
      if (first) content.remove_prefix(orphaned_prefix(content));
      if (last) content = content.substr(0, utf8::complete_prefix(content));
      first = false;
      if (!content.empty()) {
        std::string valid = utf8::replace_invalid(content);
        result.repaired += valid != content ? 1 : 0;
        Json line = Json::object();
        line.set("text", std::move(valid));
        file.write(line.dump() + "\n");
        ++result.documents;
      }
      document.clear();
    };
    std::vector<int32_t> ids;
    for (int64_t at = 0; at < source.tokens(); at += piece) {
      ids.resize(static_cast<size_t>(std::min(piece, source.tokens() - at)));
      source.read(at, ids);
      for (auto begin = ids.begin(); begin != ids.end();) {
        const auto end = std::find(begin, ids.end(), *separator);
        document += tokenizer.decode_bytes({begin, end});
        result.tokens += end - begin;
        if (document.size() > longest_document)
          throw DataError(text("more than ", format_bytes(static_cast<int64_t>(longest_document)), " before token ",
                               at + (end - ids.begin()), " without the end-of-text id ", *separator, " of the ", tokenizer.name(),
                               " tokenizer; was another tokenizer used, or --document-separator none?"));
        if (end != ids.end()) finish(false);
        begin = end == ids.end() ? end : end + 1;
      }
      if (progress) progress(at + static_cast<int64_t>(ids.size()));
    }
    finish(true);
    file.close();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  std::error_code failure;
  std::filesystem::rename(temporary, output, failure);
  if (failure) throw StorageError(text("cannot rename ", temporary, " to ", output, ": ", failure.message()));
  const std::filesystem::path parent = std::filesystem::path(output).parent_path();
  fsync_directory(parent.empty() ? "." : parent);
  return result;
}

}  // namespace dmuon
