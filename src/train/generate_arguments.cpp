#include "train/generate_arguments.h"

#include "train/command_line.h"

namespace dmuon {

ParseResult<GenerateArguments> parse_generate_arguments(int argc, char** argv) {
  CLI::App app{
      "Continues prompts with a trained model (docs/generation.md):\n"
      "  dmuon_generate --model runs/quickstart --prompt \"## \"\n"
      "Exit codes: 0 done, 2 bad input, 3 not finite, 5 storage, 6 device."};
  GenerateArguments arguments;
  GenerationOptions& options = arguments.options;
  app.add_option("--model,--checkpoint", arguments.model,
                 "a Hugging Face directory, or a run directory (its newest checkpoint), a checkpoint directory or a step directory")
      ->required();
  app.add_option("--tokenizer", arguments.tokenizer, "in place of the model's own: byte, or a tokenizer's file or folder");
  auto* prompt = app.add_option("--prompt", arguments.prompt, "text to continue");
  auto* file = app.add_option("--prompt-file", arguments.prompt_file, "file whose whole text is continued")->excludes(prompt);
  app.add_option("--prompts", arguments.prompts, "file of prompts, one a line, or objects with \"prompt\" if its name ends in .jsonl")
      ->excludes(prompt)
      ->excludes(file);
  app.add_option("--tokens", options.tokens, "tokens to generate, at most")
      ->check(integer_between(1, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--temperature", options.temperature, "0 always takes the most likely token")
      ->check(number_between(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", options.top_k, "choose among the k most likely tokens; 0: all")->check(integer_from(0))->capture_default_str();
  app.add_option("--top-p", options.top_p, "choose among the smallest set with this probability")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--repetition-penalty", options.repetition_penalty, "above 1 makes tokens that the text holds less likely")
      ->check(number_between(0.01, 100.0))
      ->capture_default_str();
  app.add_option("--stop", arguments.stop_strings, "end the text before this string; may be repeated")->allow_extra_args(false);
  app.add_flag("--past-end-of-text", arguments.past_end_of_text, "do not stop at the end-of-text token");
  app.add_flag("--plain-special-tokens", arguments.plain_special_tokens, "read special tokens in prompts as the characters they are");
  app.add_flag("--truncate-prompt", arguments.truncate_prompt,
               "of a prompt longer than the context read the end, leaving half for new text");
  app.add_option("--seed", options.seed, "seed of the sampling")->check(integer_from(0))->capture_default_str();
  app.add_option("--count", arguments.count, "texts of every prompt")->check(integer_between(1, 1000000))->capture_default_str();
  app.add_option("--batch-size", arguments.batch_size, "texts computed together")->check(integer_between(1, 4096))->capture_default_str();
  app.add_flag("!--no-cache", options.cache, "read the whole text again for every token (slow; for comparison)");
  app.add_flag("!--no-echo", arguments.echo, "print the new text without its prompt");
  app.add_flag("--json", arguments.json, "print one JSON object a text and line");
  app.add_flag("!--no-statistics", arguments.statistics, "print no speed to standard error");
  add_machine_options(app, arguments.threads, arguments.device);
  if (const auto code = parse_command_line(app, argc, argv)) return {std::nullopt, *code};
  return {arguments, 0};
}

}  // namespace dmuon
