// A build without PCRE2 and utf8proc: byte and character tokenizers work, the others say what is missing.
#include "data/unicode.h"
#include "dmuon/core/error.h"

namespace dmuon::unicode {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "this build cannot use Hugging Face tokenizers; install libpcre2-dev and libutf8proc-dev and configure with DMUON_UNICODE=ON");
}

}  // namespace

struct Pattern::Compiled {};

const uint8_t* classes() { refuse(); }
void append_composed(std::string_view, std::string&) { refuse(); }
std::string versions() { return "none"; }
Pattern::Pattern(const std::string&) { refuse(); }
Pattern::~Pattern() = default;
void Pattern::split(std::string_view, const std::function<void(std::string_view)>&) const { refuse(); }

}  // namespace dmuon::unicode
