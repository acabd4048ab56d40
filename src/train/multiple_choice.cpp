#include "train/multiple_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/batches.h"
#include "train/json_lines.h"

namespace dmuon {
namespace {

int64_t label_of(const Json& value) {
  if (value.is_integer()) return value.as_integer();
  const std::string& digits = value.as_string();
  int64_t label = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), label);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw ConfigError(text("\"label\" is \"", digits, "\"; expected the number of the right ending"));
  return label;
}

Question question_of(const Json& object, std::string origin) {
  Question question;
  question.origin = std::move(origin);
  question.context = object.at("ctx").as_string();
  for (const Json& ending : object.at("endings").as_array()) question.endings.push_back(ending.as_string());
  if (question.endings.size() < 2) throw ConfigError(text("\"endings\" has ", question.endings.size(), " members; expected two or more"));
  for (const std::string& ending : question.endings)
    if (ending.empty()) throw ConfigError("an ending is empty");
  question.label = label_of(object.at("label"));
  if (question.label < 0 || question.label >= static_cast<int64_t>(question.endings.size()))
    throw ConfigError(text("\"label\" is ", question.label, ", but there are ", question.endings.size(), " endings"));
  return question;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The sum of the losses of each sequence's ending. Sequences are filled up at their ends, which no earlier position sees.
std::vector<double> ending_losses(Backend& backend, Model& model, std::span<const ChoiceTokens> choices) {
  HostTokenBatch batch;
  batch.sequences = static_cast<int64_t>(choices.size());
  for (const ChoiceTokens& choice : choices) batch.length = std::max(batch.length, static_cast<int64_t>(choice.ids.size()) - 1);
  for (const ChoiceTokens& choice : choices) {
    const auto used = static_cast<int64_t>(choice.ids.size()) - 1;
    batch.tokens.insert(batch.tokens.end(), choice.ids.begin(), choice.ids.end() - 1);
    batch.tokens.resize(batch.tokens.size() + static_cast<size_t>(batch.length - used), 0);
    batch.targets.insert(batch.targets.end(), static_cast<size_t>(used - choice.ending), -1);
    batch.targets.insert(batch.targets.end(), choice.ids.end() - choice.ending, choice.ids.end());
    batch.targets.insert(batch.targets.end(), static_cast<size_t>(batch.length - used), -1);
  }
  ExecutionContext context{backend, backend.compute_stream()};
  context.sequences = batch.sequences;
  const DeviceBatch device = to_device(backend, context.stream, batch);
  Variable logits = model.forward(context, device.tokens, device.positions);
  const std::vector<double> losses =
      to_doubles(backend, softmax_cross_entropy(context, std::move(logits), device.targets, model.facts().vocabulary_size, 0.0).value());
  std::vector<double> sums(choices.size(), 0.0);
  for (size_t i = 0; i < losses.size(); ++i)
    if (batch.targets[i] >= 0) sums[i / static_cast<size_t>(batch.length)] += losses[i];
  for (double sum : sums)
    if (!std::isfinite(sum)) throw NumericalError("a likelihood is not finite: the model's weights have left the range of float32");
  return sums;
}

// The number of the ending whose loss, divided by its divisor, is least.
int64_t answer(std::span<const double> losses, std::span<const double> divisors) {
  size_t best = 0;
  for (size_t i = 1; i < losses.size(); ++i)
    if (losses[i] / divisors[i] < losses[best] / divisors[best]) best = i;
  return static_cast<int64_t>(best);
}

void count_answers(const Question& question, std::span<const ChoiceTokens> choices, std::span<const double> losses,
                   MultipleChoiceResult& result) {
  const std::vector<double> ones(losses.size(), 1.0);
  std::vector<double> tokens, bytes;
  for (const ChoiceTokens& choice : choices) {
    tokens.push_back(static_cast<double>(choice.ending));
    bytes.push_back(static_cast<double>(choice.bytes));
  }
  ++result.questions;
  result.right += answer(losses, ones) == question.label;
  result.right_per_token += answer(losses, tokens) == question.label;
  result.right_per_byte += answer(losses, bytes) == question.label;
}

}  // namespace

std::vector<Question> read_questions(const std::string& file, int64_t limit) {
  std::vector<Question> questions;
  for_each_json_line(file, [&](const Json& object, int64_t line) {
    if (limit == 0 || static_cast<int64_t>(questions.size()) < limit) questions.push_back(question_of(object, text(file, ":", line)));
  });
  if (questions.empty())
    throw DataError(text(file, " holds no questions; expected one JSON object a line with \"ctx\", \"endings\" and \"label\""));
  return questions;
}

ChoiceTokens choice_tokens(const Tokenizer& tokenizer, const Question& question, size_t ending, int64_t capacity) {
  ChoiceTokens choice;
  const std::string& words = question.endings[ending];
  const bool apart = question.context.empty() || is_space(question.context.back()) || is_space(words.front());
  choice.bytes = static_cast<int64_t>(words.size());
  const std::vector<int32_t> ending_ids = tokenizer.encode(apart ? words : " " + words, question.origin);
  choice.ids = tokenizer.encode(question.context, question.origin);
  if (choice.ids.empty() && tokenizer.end_of_text()) choice.ids.push_back(*tokenizer.end_of_text());
  choice.ending = static_cast<int64_t>(ending_ids.size());
  if (choice.ids.empty()) throw DataError(text(question.origin, ": \"ctx\" is empty, and the tokenizer has no token to begin with"));
  if (choice.ending > capacity)
    throw DataError(text(question.origin, ": ending ", ending, " has ", choice.ending, " tokens, the model reads at most ", capacity));
  choice.ids.insert(choice.ids.end(), ending_ids.begin(), ending_ids.end());
  if (const auto length = static_cast<int64_t>(choice.ids.size()); length > capacity + 1)
    choice.ids.erase(choice.ids.begin(), choice.ids.end() - (capacity + 1));
  return choice;
}

MultipleChoiceResult evaluate_choices(Backend& backend, Model& model, const Tokenizer& tokenizer, const std::vector<Question>& questions,
                                      int64_t batch_size, const std::function<void(int64_t, int64_t)>& progress) {
  MultipleChoiceResult result;
  for (size_t first = 0; first < questions.size();) {
    // As many whole questions as the batch takes, at least one.
    std::vector<ChoiceTokens> choices;
    size_t end = first;
    while (end < questions.size() && (end == first || choices.size() + questions[end].endings.size() <= static_cast<size_t>(batch_size))) {
      for (size_t i = 0; i < questions[end].endings.size(); ++i)
        choices.push_back(choice_tokens(tokenizer, questions[end], i, model.facts().context_length));
      ++end;
    }
    const std::vector<double> losses = ending_losses(backend, model, choices);
    for (size_t at = 0; first < end; ++first) {
      const size_t count = questions[first].endings.size();
      count_answers(questions[first], std::span(choices).subspan(at, count), std::span(losses).subspan(at, count), result);
      at += count;
    }
    if (progress) progress(result.questions, static_cast<int64_t>(questions.size()));
  }
  return result;
}

}  // namespace dmuon
