#include <algorithm>
#include <cstdio>
#include <memory>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/train/train.h"
#include "train/command_line.h"
#include "train/devices.h"
#include "train/generate_arguments.h"
#include "train/load_model.h"
#include "train/prompts.h"
#include "train/text_stream.h"
#include "train/threads.h"

namespace dmuon {
namespace {

// One text that is wanted: its prompt, and its place in what is printed.
struct Wanted {
  std::string prompt;
  std::vector<int32_t> ids;
};

// What has come of it.
struct Written {
  TextStream stream;
  std::string text;
  int64_t tokens = 0;
  const char* ended_by = "length";
};

std::vector<Wanted> wanted_texts(const GenerateArguments& arguments, const Tokenizer& tokenizer, int64_t context_length) {
  const SpecialTokens special = arguments.plain_special_tokens ? SpecialTokens::plain : SpecialTokens::parse;
  std::vector<std::string> prompts;
  if (!arguments.prompts.empty())
    prompts = read_prompts(arguments.prompts);
  else
    prompts.push_back(arguments.prompt_file.empty() ? arguments.prompt : read_file(arguments.prompt_file));
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string origin = prompts.size() > 1 ? text("prompt ", i + 1) : "prompt";
    Wanted text{prompts[i], encode_prompt(prompts[i], origin, tokenizer, special)};
    if (const auto length = static_cast<int64_t>(text.ids.size()); length > context_length) {
      if (!arguments.truncate_prompt)
        throw DataError(dmuon::text(origin, " has ", length, " tokens, the model reads at most ", context_length,
                                    "; shorten it, or keep its end with --truncate-prompt"));
      text.ids.erase(text.ids.begin(), text.ids.end() - std::max<int64_t>(1, context_length / 2));
    }
    for (int64_t copy = 0; copy < arguments.count; ++copy) wanted.push_back(text);
  }
  return wanted;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Json describe(size_t index, const Wanted& wanted, const Written& written) {
  Json object = Json::object();
  object.set("index", static_cast<int64_t>(index));
  object.set("prompt", replace_invalid(wanted.prompt));
  object.set("text", written.text);
  object.set("prompt_tokens", static_cast<int64_t>(wanted.ids.size()));
  object.set("tokens", written.tokens);
  object.set("ended_by", written.ended_by);
  return object;
}

class Generation {
 public:
  Generation(const GenerateArguments& arguments, Backend& backend, const LoadedModel& loaded)
      : arguments_(arguments), backend_(backend), model_(*loaded.model), tokenizer_(require_tokenizer(loaded)) {}

  void run() {
    wanted_ = wanted_texts(arguments_, tokenizer_, model_.facts().context_length);
    for (size_t first = 0; first < wanted_.size();) {
      const size_t count = std::min(static_cast<size_t>(arguments_.batch_size), wanted_.size() - first);
      run_batch(first, count);
      first += count;
    }
    if (arguments_.statistics) report();
  }

 private:
  void run_batch(size_t first, size_t count) {
    std::vector<Written> written(count, Written{TextStream(arguments_.stop_strings), "", 0, "length"});
    const bool streams = count == 1 && !arguments_.json;
    if (streams) print(opening(first));
    std::vector<std::vector<int32_t>> prompts;
    for (size_t i = 0; i < count; ++i) prompts.push_back(wanted_[first + i].ids);
    GenerationOptions options = arguments_.options;
    options.classes = tokenizer_.vocabulary_size();
    options.sequence = first;
    const GenerationResult result = generate_batch(backend_, model_, prompts, options, [&](size_t i, int32_t id) {
      Written& out = written[i];
      ++out.tokens;
      if (!arguments_.past_end_of_text && tokenizer_.end_of_text() == id) {
        out.ended_by = "end_of_text";
        return false;
      }
      const std::string ready = out.stream.push(tokenizer_.decode_bytes(std::span(&id, 1)));
      out.text += ready;
      if (streams) print(ready);
      if (out.stream.stopped()) out.ended_by = "stop_string";
      return !out.stream.stopped();
    });
    for (size_t i = 0; i < count; ++i) {
      written_tokens_ += written[i].tokens;
      const std::string rest = written[i].stream.finish();
      written[i].text += rest;
      if (arguments_.json)
        print(describe(first + i, wanted_[first + i], written[i]).dump() + "\n");
      else
        print((streams ? rest : opening(first + i) + written[i].text) + "\n");
    }
    total_.prompt_tokens += result.prompt_tokens;
    total_.prompt_seconds += result.prompt_seconds;
    total_.generated_tokens += result.generated_tokens;
    total_.generation_seconds += result.generation_seconds;
  }

  std::string opening(size_t index) const {
    const std::string line = wanted_.size() > 1 ? text(index > 0 ? "\n" : "", "--- ", index + 1, " ---\n") : "";
    return line + (arguments_.echo ? wanted_[index].prompt : "");
  }

  void report() const {
    const auto speed = [](int64_t tokens, double seconds) {
      return seconds > 0.0 ? format_number(static_cast<double>(tokens) / seconds, 1) : std::string("0");
    };
    std::fprintf(stderr, "prompt: %lld tokens, %s tokens/s; generation: %lld tokens, %s tokens/s\n",
                 static_cast<long long>(total_.prompt_tokens), speed(total_.prompt_tokens, total_.prompt_seconds).c_str(),
                 static_cast<long long>(written_tokens_), speed(total_.generated_tokens, total_.generation_seconds).c_str());
  }

  const GenerateArguments& arguments_;
  Backend& backend_;
  Model& model_;
  const Tokenizer& tokenizer_;
  std::vector<Wanted> wanted_;
  GenerationResult total_;
  int64_t written_tokens_ = 0;  // each text's first included, which reading the prompt gives and the speed leaves out
};

void run(const GenerateArguments& arguments, const std::vector<ModelFamily>& families) {
  TextStream check(arguments.stop_strings);  // bad ones are refused before anything is loaded
  BackendOptions options;
  options.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : allowed_processors();
  const std::unique_ptr<Backend> backend = make_backend(arguments.device, options);
  const LoadedModel loaded = load_model(*backend, arguments.model, arguments.tokenizer, families);
  Generation(arguments, *backend, loaded).run();
}

}  // namespace

int generate(int argc, char** argv, const std::vector<ModelFamily>& families) {
  const ParseResult<GenerateArguments> parsed = parse_generate_arguments(argc, argv);
  if (!parsed.arguments) return parsed.exit_code;
  return exit_code_of([&] { run(*parsed.arguments, families); });
}

}  // namespace dmuon
