// The command line of dmuon_evaluate.
#pragma once

#include <string>
#include <vector>

#include "train/arguments.h"
#include "train/text_evaluation.h"

namespace dmuon {

struct EvaluateArguments {
  std::string model;      // checkpoint
  std::string tokenizer;  // empty: the model's own
  std::vector<std::string> data;
  std::string format = "auto";
  std::string questions;  // file of multiple choice; empty: none
  int64_t limit = 0;      // questions; 0: all
  std::string json;       // report file; empty: none
  bool progress = true;
  int64_t threads = 0;
  std::string device = "auto";
  TextEvaluationOptions options;
};
ParseResult<EvaluateArguments> parse_evaluate_arguments(int argc, char** argv);

}  // namespace dmuon
