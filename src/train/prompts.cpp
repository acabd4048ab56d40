#include "train/prompts.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/json_lines.h"

namespace dmuon {

std::vector<std::string> read_prompts(const std::string& file) {
  std::vector<std::string> prompts;
  if (file.ends_with(".jsonl"))
    for_each_json_line(file, [&](const Json& object, int64_t) { prompts.push_back(object.at("prompt").as_string()); });
  else
    for_each_line(file, [&](std::string_view line, int64_t) { prompts.emplace_back(line); });
  if (prompts.empty()) throw DataError(text(file, " holds no prompts; write one a line"));
  return prompts;
}

std::vector<int32_t> encode_prompt(const std::string& prompt, const std::string& origin, const Tokenizer& tokenizer,
                                   SpecialTokens special) {
  if (prompt.empty() && tokenizer.end_of_text()) return {*tokenizer.end_of_text()};
  return tokenizer.encode(prompt.empty() ? "\n" : prompt, origin, special);
}

}  // namespace dmuon
