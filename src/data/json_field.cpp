#include "data/json_field.h"

#include <utility>

#include "data/utf8.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr size_t deepest = 128;

bool blank(unsigned char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool digit(unsigned char c) { return c >= '0' && c <= '9'; }

std::string shown(unsigned char c) {
  if (c >= 0x20 && c < 0x7F) return text("'", static_cast<char>(c), "'");
  static constexpr char hex[] = "0123456789abcdef";
  return text("the byte 0x", hex[c >> 4], hex[c & 15]);
}

[[noreturn]] void unexpected(unsigned char c, std::string_view expected) {
  throw JsonField::Failure{text("found ", shown(c), ", expected ", expected)};
}

}  // namespace

void JsonField::begin() {
  state_ = State::object;
  open_.clear();
  next_wanted_ = found_ = false;
  high_half_ = 0;
  position_ = 0;
}

void JsonField::feed(std::string_view piece, std::string& out) {
  for (size_t at = 0; at < piece.size();) {
    if (state_ == State::string) {  // a stretch without quotes, escapes and control characters at once
      size_t end = at;
      while (end < piece.size() && piece[end] != '"' && piece[end] != '\\' && static_cast<unsigned char>(piece[end]) >= 0x20) ++end;
      if (end > at) {
        require_no_half();
        put(piece.substr(at, end - at), out);
        position_ += static_cast<int64_t>(end - at);
        at = end;
        continue;
      }
    }
    step(static_cast<unsigned char>(piece[at++]), out);
    ++position_;
  }
}

void JsonField::finish() const {
  if (state_ != State::end)
    throw Failure{state_ == State::object ? "the line is empty, expected a JSON object" : "the line ends inside its JSON object"};
  if (!found_) throw Failure{text("the object has no field \"", name_, "\"")};
}

void JsonField::step(unsigned char c, std::string& out) {
  switch (state_) {
    case State::object:
      if (blank(c)) return;
      if (c == 0xEF) unexpected(c, "a JSON object (if the file begins with a byte order mark, remove it)");
      if (c != '{') unexpected(c, "a JSON object in every line");
      open_ = "{";
      state_ = State::key_or_end;
      return;
    case State::key_or_end:
      if (c == '}') return close('{');
      [[fallthrough]];
    case State::key:
      if (blank(c)) return;
      if (c != '"') unexpected(c, "a key in double quotes");
      return begin_string(Use::key);
    case State::colon:
      if (blank(c)) return;
      if (c != ':') unexpected(c, "a colon after the key");
      state_ = State::value;
      return;
    case State::value_or_end:
      if (c == ']') return close('[');
      [[fallthrough]];
    case State::value:
      return blank(c) ? void() : begin_value(c);
    case State::string:
      if (c == '"') return end_string();
      if (c != '\\') unexpected(c, "control characters escaped inside a string");
      state_ = State::escape;
      return;
    case State::escape: {
      if (c == 'u') {
        state_ = State::code_unit;
        unit_digits_ = 0;
        unit_ = 0;
        return;
      }
      require_no_half();
      static constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
      const size_t which = names.find(static_cast<char>(c));
      if (which == std::string_view::npos) unexpected(c, "one of \" \\ / b f n r t u after a backslash");
      put(meanings.substr(which, 1), out);
      state_ = State::string;
      return;
    }
    case State::code_unit: {
      const unsigned char low = c | 0x20;
      if (!digit(c) && (low < 'a' || low > 'f')) unexpected(c, "four hexadecimal digits after \\u");
      unit_ = unit_ << 4 | (digit(c) ? c - '0' : low - 'a' + 10u);
      if (++unit_digits_ < 4) return;
      state_ = State::string;
      return put_unit(unit_, out);
    }
    case State::number:
      if (number_goes_on(c)) return;
      if (digit_ == Digit::minus || digit_ == Digit::point || digit_ == Digit::exponent || digit_ == Digit::sign)
        unexpected(c, "a digit of the number");
      state_ = State::after_value;
      return step(c, out);
    case State::word:
      if (c != static_cast<unsigned char>(word_.front())) unexpected(c, "true, false or null");
      word_.remove_prefix(1);
      if (word_.empty()) state_ = State::after_value;
      return;
    case State::after_value:
      if (blank(c)) return;
      if (c == ',') {
        state_ = open_.back() == '{' ? State::key : State::value;
        return;
      }
      if (c == '}') return close('{');
      if (c == ']') return close('[');
      unexpected(c, open_.back() == '{' ? "a comma or }" : "a comma or ]");
    case State::end:
      if (!blank(c)) unexpected(c, "the end of the line after the object");
  }
}

void JsonField::begin_value(unsigned char c) {
  const bool wanted = std::exchange(next_wanted_, false);
  if (wanted && c != '"') throw Failure{text("the field \"", name_, "\" is not a string")};
  if (c == '"') {
    if (wanted && std::exchange(found_, true)) throw Failure{text("the field \"", name_, "\" occurs twice")};
    begin_string(wanted ? Use::wanted : Use::other);
  } else if (c == '{' || c == '[') {
    if (open_.size() == deepest) throw Failure{text("more than ", deepest, " levels of objects and arrays")};
    open_ += static_cast<char>(c);
    state_ = c == '{' ? State::key_or_end : State::value_or_end;
  } else if (c == '-' || digit(c)) {
    digit_ = c == '-' ? Digit::minus : c == '0' ? Digit::zero : Digit::integer;
    state_ = State::number;
  } else {
    word_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
    if (word_.empty()) unexpected(c, "a value");
    state_ = State::word;
  }
}

void JsonField::begin_string(Use use) {
  use_ = use;
  state_ = State::string;
  key_.clear();
}

void JsonField::end_string() {
  require_no_half();
  if (use_ != Use::key) {
    state_ = State::after_value;
    return;
  }
  next_wanted_ = open_.size() == 1 && key_ == name_;
  state_ = State::colon;
}

void JsonField::close(char open) {
  if (open_.back() != open) unexpected(open == '{' ? '}' : ']', open == '{' ? "a comma or ]" : "a comma or }");
  open_.pop_back();
  state_ = open_.empty() ? State::end : State::after_value;
}

bool JsonField::number_goes_on(unsigned char c) {
  const auto to = [&](Digit next) {
    digit_ = next;
    return true;
  };
  const bool exponent = c == 'e' || c == 'E';
  switch (digit_) {
    case Digit::minus:
      return digit(c) && to(c == '0' ? Digit::zero : Digit::integer);
    case Digit::integer:
      if (digit(c)) return true;
      [[fallthrough]];
    case Digit::zero:
      return c == '.' ? to(Digit::point) : exponent && to(Digit::exponent);
    case Digit::point:
      return digit(c) && to(Digit::fraction);
    case Digit::fraction:
      return digit(c) || (exponent && to(Digit::exponent));
    case Digit::exponent:
      return c == '+' || c == '-' ? to(Digit::sign) : digit(c) && to(Digit::power);
    case Digit::sign:
    case Digit::power:
      return digit(c) && to(Digit::power);
  }
  return false;
}

void JsonField::put(std::string_view bytes, std::string& out) {
  if (use_ == Use::wanted) out += bytes;
  if (use_ == Use::key && key_.size() <= name_.size()) key_ += bytes.substr(0, name_.size() + 1);
}

void JsonField::put_unit(uint32_t unit, std::string& out) {
  const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
  if (low != (high_half_ != 0)) throw Failure{"half of a surrogate pair in a \\u escape"};
  if (high) {
    high_half_ = unit;
    return;
  }
  std::string bytes;
  utf8::append(low ? 0x10000 + ((std::exchange(high_half_, 0) - 0xD800) << 10) + (unit - 0xDC00) : unit, bytes);
  put(bytes, out);
}

void JsonField::require_no_half() const {
  if (high_half_ != 0) throw Failure{"half of a surrogate pair in a \\u escape"};
}

}  // namespace dmuon
