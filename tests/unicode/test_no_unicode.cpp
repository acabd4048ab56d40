// A build without PCRE2 and utf8proc says what is missing, and the tokenizers that need neither work.
#include "data/unicode.h"
#include "dmuon/core/error.h"
#include "dmuon/data/tokenizer.h"
#include "support/catch.h"

using namespace dmuon;
using Catch::Contains;

TEST_CASE("without the Unicode libraries byte-level BPE is refused by name, bytes and characters work") {
  CHECK(unicode::versions() == "none");
  for (const char* name : {"/qwen", "/gpt2", "/gpt2_files"}) {
    try {
      read_tokenizer(std::string(DMUON_TOKENIZER_FIXTURES) + name);
      FAIL(name << " was accepted");
    } catch (const ConfigError& error) {
      CHECK_THAT(error.what(), Contains("libpcre2-dev and libutf8proc-dev") && Contains("DMUON_UNICODE=ON"));
    }
  }
  std::string out;
  CHECK_THROWS_AS(unicode::Pattern("a"), ConfigError);
  CHECK_THROWS_AS(unicode::classes(), ConfigError);
  CHECK_THROWS_AS(unicode::append_composed("a", out), ConfigError);
  const std::string text = "größer 你好";
  CHECK(make_byte_tokenizer()->decode(make_byte_tokenizer()->encode(text)) == text);
  const TokenizerHandle characters = make_character_tokenizer(text);
  CHECK(characters->decode(characters->encode(text)) == text);
}
