// One string field of JSON objects that stand in a line each, without building the objects: lines of any length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dmuon {

// Reads a line front to back in pieces of any size. The whole line is checked against the grammar of JSON, at most 128 levels
// deep; of its contents only the wanted field is looked at. That the bytes are UTF-8 is checked by whoever reads the line.
class JsonField {
 public:
  // What is wrong, without place: the caller knows file and line, position() the byte.
  struct Failure {
    std::string what;
  };

  explicit JsonField(std::string name) : name_(std::move(name)) {}
  void begin();
  // Appends to `out` what the piece adds to the field's text. Throws Failure.
  void feed(std::string_view piece, std::string& out);
  // At the line's end. Throws Failure if the object is not complete, or if it has no such field.
  void finish() const;
  int64_t position() const { return position_; }  // of the byte that is being read, from the line's first

 private:
  // What may come next.
  enum class State {
    object,        // the line's opening brace
    key_or_end,    // after {
    key,           // after a comma in an object
    colon,         //
    value,         //
    value_or_end,  // after [
    string,        // inside a string ...
    escape,        // ... after a backslash ...
    code_unit,     // ... in the digits of \u
    number,        //
    word,          // true, false, null
    after_value,   //
    end,           // white space
  };
  enum class Use { key, wanted, other };
  // Places in a number: -, leading 0, integer digits, ., fraction digits, e, its sign, its digits.
  enum class Digit { minus, zero, integer, point, fraction, exponent, sign, power };

  void step(unsigned char c, std::string& out);
  void begin_value(unsigned char c);
  void begin_string(Use use);
  void end_string();
  void close(char open);
  bool number_goes_on(unsigned char c);
  void put(std::string_view bytes, std::string& out);
  void put_unit(uint32_t unit, std::string& out);
  void require_no_half() const;

  std::string name_;
  State state_ = State::object;
  Use use_ = Use::other;
  Digit digit_ = Digit::minus;
  std::string open_;  // brackets that are open
  std::string key_;   // no more of it than decides whether it is the wanted one
  bool next_wanted_ = false, found_ = false;
  std::string_view word_;  // what is left of it
  int unit_digits_ = 0;
  uint32_t unit_ = 0, high_half_ = 0;
  int64_t position_ = 0;
};

}  // namespace dmuon
