#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/train/train.h"
#include "train/command_line.h"
#include "train/devices.h"
#include "train/evaluate_arguments.h"
#include "train/load_model.h"
#include "train/multiple_choice.h"
#include "train/threads.h"

namespace dmuon {
namespace {

// A line on standard error: rewritten about five times a second on a terminal, every half minute elsewhere.
class ProgressLine {
 public:
  ProgressLine(std::string unit, bool on) : unit_(std::move(unit)), on_(on), terminal_(isatty(STDERR_FILENO) != 0) {}
  void operator()(int64_t done, int64_t all) {
    const Clock::time_point now = Clock::now();
    if (!on_ || (done < all && now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(30000)))) return;
    if (!terminal_ && done == all) return;
    last_ = now;
    const double spent = std::chrono::duration<double>(now - start_).count();
    const double left = spent * static_cast<double>(all - done) / static_cast<double>(done);
    std::fprintf(stderr, "%s%s of %s %s, %s left%s", terminal_ ? "\r" : "", format_count(done).c_str(), format_count(all).c_str(),
                 unit_.c_str(), format_duration(left).c_str(), terminal_ ? "   " : "\n");
    if (terminal_ && done == all) std::fprintf(stderr, "\n");
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string unit_;
  bool on_, terminal_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

using Rows = std::vector<std::vector<std::string>>;

Json evaluate_data(const EvaluateArguments& arguments, Backend& backend, const LoadedModel& loaded, Rows& rows) {
  const std::vector<std::string> files = expand_files(arguments.data, "--data");
  const TokenFormat format = detect_format(files, arguments.format);
  if (format == TokenFormat::text) require_tokenizer(loaded);
  const TokenSourceHandle source = open_tokens(files, format, loaded.tokenizer, loaded.model->facts().vocabulary_size);
  ProgressLine progress("windows", arguments.progress);
  const TextEvaluationResult result =
      evaluate_text(backend, *loaded.model, source, loaded.tokenizer.get(), arguments.options, std::ref(progress));
  Json object = Json::object();
  object.set("windows", arguments.options.stride > 0 ? "strided" : "side by side");
  object.set("length", arguments.options.length > 0 ? arguments.options.length : loaded.model->facts().context_length);
  if (arguments.options.stride > 0) object.set("stride", arguments.options.stride);
  object.set("tokens", result.targets);
  object.set("tokens_left_out", result.tokens_left_out);
  object.set("loss", result.loss);
  object.set("perplexity", result.perplexity());
  rows.push_back({"tokens predicted", format_count(result.targets)});
  if (result.tokens_left_out > 0) rows.push_back({"tokens left out at the end", format_count(result.tokens_left_out)});
  rows.push_back({"loss", format_number(result.loss, 6)});
  rows.push_back({"perplexity", format_number(result.perplexity(), 4)});
  if (result.target_bytes > 0) {
    object.set("bytes", result.target_bytes);
    object.set("bits_per_byte", result.bits_per_byte());
    rows.push_back({"bits per byte", format_number(result.bits_per_byte(), 6)});
  }
  return object;
}

Json evaluate_questions(const EvaluateArguments& arguments, Backend& backend, const LoadedModel& loaded,
                        const std::vector<Question>& questions, Rows& rows) {
  ProgressLine progress("questions", arguments.progress);
  const MultipleChoiceResult result =
      evaluate_choices(backend, *loaded.model, require_tokenizer(loaded), questions, arguments.options.batch_size, std::ref(progress));
  Json object = Json::object();
  object.set("questions", result.questions);
  rows.push_back({"questions", format_count(result.questions)});
  const auto share = [&](const char* key, const char* name, int64_t right) {
    const double accuracy = static_cast<double>(right) / static_cast<double>(result.questions);
    object.set(key, accuracy);
    rows.push_back({name, format_number(accuracy, 4)});
  };
  share("accuracy", "accuracy", result.right);
  share("accuracy_per_token", "accuracy, likelihood per token", result.right_per_token);
  share("accuracy_per_byte", "accuracy, likelihood per byte", result.right_per_byte);
  return object;
}

void run(const EvaluateArguments& arguments, const std::vector<ModelFamily>& families) {
  if (arguments.data.empty() && arguments.questions.empty())
    throw ConfigError("nothing to evaluate: give --data, --multiple-choice or both");
  require_writable(arguments.json);
  std::vector<Question> questions;
  if (!arguments.questions.empty()) questions = read_questions(arguments.questions, arguments.limit);
  BackendOptions options;
  options.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : allowed_processors();
  const std::unique_ptr<Backend> backend = make_backend(arguments.device, options);
  const LoadedModel loaded = load_model(*backend, arguments.model, arguments.tokenizer, families);
  Json report = Json::object();
  report.set("model", loaded.origin);
  report.set("parameters", loaded.model->facts().parameters);
  Rows rows{{"measure", "value"}};
  if (!arguments.data.empty()) report.set("text", evaluate_data(arguments, *backend, loaded, rows));
  if (!questions.empty()) report.set("multiple_choice", evaluate_questions(arguments, *backend, loaded, questions, rows));
  std::printf("%s", format_table(rows).c_str());
  if (!arguments.json.empty()) write_file_atomically(arguments.json, report.dump(2) + "\n");
}

}  // namespace

int evaluate(int argc, char** argv, const std::vector<ModelFamily>& families) {
  const ParseResult<EvaluateArguments> parsed = parse_evaluate_arguments(argc, argv);
  if (!parsed.arguments) return parsed.exit_code;
  return exit_code_of([&] { run(*parsed.arguments, families); });
}

}  // namespace dmuon
