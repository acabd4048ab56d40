#include "data/byte_tokenizer.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

void ByteTokenizer::encode(std::string_view text, std::string_view, int64_t, std::vector<int32_t>& ids, SpecialTokens) const {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

std::string ByteTokenizer::decode_bytes(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (id < 0 || id > 255) throw DataError(text("token id ", id, " is outside the byte tokenizer's vocabulary of 256"));
    out += static_cast<char>(static_cast<unsigned char>(id));
  }
  return out;
}

Json ByteTokenizer::to_json() const {
  Json description = Json::object();
  description.set("type", "byte");
  return description;
}

}  // namespace dmuon
