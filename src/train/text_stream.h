// Bytes that come piece by piece, made into text that may be shown at once: only whole characters, nothing of a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dmuon {

class TextStream {
 public:
  // ConfigError for an empty stop string.
  explicit TextStream(std::vector<std::string> stop_strings = {});

  // Takes the next bytes and returns the text that is certain by now: valid UTF-8 with U+FFFD for bytes that are part of no
  // character, held back as long as its end may begin a stop string or is an unfinished character. However the bytes are cut
  // into pieces, all that push and finish return together is the same. The text ends before the stop string that is complete
  // first (of several at one byte: the longest); later bytes are passed over.
  std::string push(std::string_view bytes);
  // What was held back, as the end of the text.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stop_strings_;
  std::string pending_;
  bool stopped_ = false;
};

// `bytes` as valid UTF-8: U+FFFD in place of every byte that is part of no whole character.
std::string replace_invalid(std::string_view bytes);

}  // namespace dmuon
