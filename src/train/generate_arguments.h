// The command line of dmuon_generate.
#pragma once

#include <string>
#include <vector>

#include "dmuon/train/generator.h"
#include "train/arguments.h"

namespace dmuon {

struct GenerateArguments {
  std::string model;      // checkpoint
  std::string tokenizer;  // empty: the model's own
  std::string prompt;
  std::string prompt_file;  // one prompt
  std::string prompts;      // many
  std::vector<std::string> stop_strings;
  int64_t count = 1;       // texts of every prompt
  int64_t batch_size = 8;  // texts computed together
  bool past_end_of_text = false;
  bool plain_special_tokens = false;
  bool truncate_prompt = false;
  bool echo = true;
  bool json = false;
  bool statistics = true;
  int64_t threads = 0;
  std::string device = "auto";
  GenerationOptions options;
};
ParseResult<GenerateArguments> parse_generate_arguments(int argc, char** argv);

}  // namespace dmuon
