#include "train/evaluate_arguments.h"

#include "train/command_line.h"

namespace dmuon {

ParseResult<EvaluateArguments> parse_evaluate_arguments(int argc, char** argv) {
  CLI::App app{
      "Measures a trained model on data, on questions, or on both (docs/evaluation.md):\n"
      "  dmuon_evaluate --model runs/quickstart --data text.txt\n"
      "  dmuon_evaluate --model runs/quickstart --multiple-choice hellaswag_val.jsonl\n"
      "Exit codes: 0 done, 2 bad input, 3 not finite, 5 storage, 6 device."};
  EvaluateArguments arguments;
  TextEvaluationOptions& options = arguments.options;
  const auto count = integer_between(0, int64_t{1} << 50);
  app.add_option("--model,--checkpoint", arguments.model,
                 "a Hugging Face directory, or a run directory (its newest checkpoint), a checkpoint directory or a step directory")
      ->required();
  app.add_option("--tokenizer", arguments.tokenizer, "in place of the model's own: byte, or a tokenizer's file or folder");
  app.add_option("--data", arguments.data, "files or patterns of text or token shards: loss, perplexity, bits per byte");
  app.add_option("--format", arguments.format, "of the data: auto, text, nanogpt or llmc")->capture_default_str();
  app.add_option("--length", options.length, "tokens a window; 0: the model's context")->check(count)->capture_default_str();
  app.add_option("--stride", options.stride,
                 "tokens between the starts of windows: each token but the first is predicted once, with at least length - stride before "
                 "it; 0: windows side by side as during training, what fills none at the end left out")
      ->check(count)
      ->capture_default_str();
  app.add_option("--maximum-tokens", options.maximum_tokens, "predict about this many tokens of the data; 0: all")
      ->check(count)
      ->capture_default_str();
  app.add_option("--multiple-choice", arguments.questions, "questions, one JSON object a line with \"ctx\", \"endings\" and \"label\"");
  app.add_option("--limit", arguments.limit, "take this many questions; 0: all")->check(count)->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "windows or endings computed together")
      ->check(integer_between(1, 65536))
      ->capture_default_str();
  app.add_option("--json", arguments.json, "also write the results to this file");
  app.add_flag("!--no-progress", arguments.progress, "show no progress on standard error");
  add_machine_options(app, arguments.threads, arguments.device);
  if (const auto code = parse_command_line(app, argc, argv)) return {std::nullopt, *code};
  return {arguments, 0};
}

}  // namespace dmuon
