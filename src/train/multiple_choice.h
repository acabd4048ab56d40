// Questions whose answer a model gives by the likelihood of each ending: HellaSwag's form (Zellers et al., 2019).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dmuon/data/tokenizer.h"
#include "dmuon/nn/model.h"

namespace dmuon {

struct Question {
  std::string origin;  // "FILE:LINE"
  std::string context;
  std::vector<std::string> endings;
  int64_t label = 0;  // number of the right ending
};

// JSON Lines with "ctx" (string), "endings" (two strings or more, none empty) and "label" (number of the right one, as an integer or
// as a string of digits); other members are passed over. DataError names file and line. `limit` 0: all.
std::vector<Question> read_questions(const std::string& file, int64_t limit = 0);

struct ChoiceTokens {
  std::vector<int32_t> ids;  // context and ending
  int64_t ending = 0;        // how many at the end belong to the ending
  int64_t bytes = 0;         // of the ending's text
};
// Context and ending become ids apart, with a space between them unless one of them has white space there; only the ending counts.
// Of more than capacity + 1 ids the first are left out. An empty context is the end-of-text token. DataError where the ending alone
// is too long, or where nothing stands before it.
ChoiceTokens choice_tokens(const Tokenizer& tokenizer, const Question& question, size_t ending, int64_t capacity);

struct MultipleChoiceResult {
  int64_t questions = 0;
  int64_t right = 0;            // by the likelihood of the whole ending
  int64_t right_per_token = 0;  // by its mean over the ending's tokens
  int64_t right_per_byte = 0;   // by that divided by the bytes of the ending's text
};

// `batch_size` sequences are computed together. Of endings that are equally likely the first is the answer. `progress` sees
// questions done and all of them.
MultipleChoiceResult evaluate_choices(Backend& backend, Model& model, const Tokenizer& tokenizer, const std::vector<Question>& questions,
                                      int64_t batch_size, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace dmuon
