#include "dmuon/core/hash.h"

#include "support/catch.h"

using namespace dmuon;

TEST_CASE("XXH3 of nothing is the published value") { CHECK(hash_to_hex(hash_bytes("", 0)) == "2d06800538d394c2"); }

TEST_CASE("hexadecimal digits are fixed width and lower case") {
  CHECK(hash_to_hex(0) == "0000000000000000");
  CHECK(hash_to_hex(0xABCDEF) == "0000000000abcdef");
  CHECK(hash_to_hex(UINT64_MAX) == "ffffffffffffffff");
}

TEST_CASE("pieces hash like the whole, whatever the cuts") {
  std::string data(100'003, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + (i >> 8));
  const auto whole = hash_bytes(data.data(), static_cast<int64_t>(data.size()));
  for (const size_t piece : {1, 63, 64, 255, 256, 1024, 70'000}) {
    StreamingHash hash;
    for (size_t begin = 0; begin < data.size(); begin += piece)
      hash.update(data.data() + begin, static_cast<int64_t>(std::min(piece, data.size() - begin)));
    CHECK(hash.digest() == whole);
    CHECK(hash.digest() == whole);  // asking does not change it
  }
  CHECK(StreamingHash().digest() == hash_bytes("", 0));
  CHECK(hash_bytes("abc", 3) != hash_bytes("abd", 3));
  CHECK(hash_bytes("abc", 3, 1) != hash_bytes("abc", 3, 2));
}
