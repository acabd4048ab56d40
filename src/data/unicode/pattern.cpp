// Regular expressions by PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "data/unicode.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::unicode {

struct Pattern::Compiled {
  std::string expression;
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

namespace {

// PCRE2's own \s holds U+180E, which has not been White_Space since Unicode 6.3.
std::string with_white_space(const std::string& expression) {
  std::string out;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '\\' || i + 1 == expression.size()) {
      out += expression[i];
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 's' || escaped == 'S')
      out += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else
      out.append({'\\', escaped});
  }
  return out;
}

}  // namespace

Pattern::Pattern(const std::string& expression) : compiled_(std::make_unique<Compiled>()) {
  compiled_->expression = expression;
  int error = 0;
  PCRE2_SIZE position = 0;
  const std::string meant = with_white_space(expression);
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(meant.data()), meant.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                  &error, &position, nullptr);
  if (compiled_->code == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw DataError(text("pre_tokenizer: the pattern \"", expression, "\" is not understood at position ", position, ": ", message));
  }
  // Without the just-in-time compiler (some processors) the same matches are found by interpretation.
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);
}

Pattern::~Pattern() = default;

void Pattern::split(std::string_view source, const std::function<void(std::string_view)>& visit) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(source.data());
  size_t done = 0;
  for (size_t from = 0; from < source.size();) {
    const int found = pcre2_match(compiled_->code, subject, source.size(), from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw DataError(text("the pattern ", compiled_->expression, " takes too many steps on this text (PCRE2 error ", found, ")"));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    if (bounds[1] <= bounds[0]) {  // empty: the next character is part of a stretch between matches
      from = std::max<size_t>(from, bounds[0]) + 1;
      while (from < source.size() && (static_cast<unsigned char>(source[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (bounds[0] > done) visit(source.substr(done, bounds[0] - done));
    visit(source.substr(bounds[0], bounds[1] - bounds[0]));
    done = from = bounds[1];
  }
  if (done < source.size()) visit(source.substr(done));
}

std::string versions() {
  char pcre2[64] = "", pcre2_unicode[64] = "";
  pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre2_unicode);
  return text("utf8proc ", utf8proc_version(), " (Unicode ", utf8proc_unicode_version(), "), PCRE2 ", pcre2, " (Unicode ", pcre2_unicode,
              ")");
}

}  // namespace dmuon::unicode
