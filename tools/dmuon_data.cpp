// dmuon_data: prepares and examines token files.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "data/decode_documents.h"
#include "data/inspect.h"
#include "data/tokenize.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/command_line.h"
#include "train/threads.h"

namespace {

using namespace dmuon;

// One line that rewrites itself, ten times a second, on a terminal only.
class ProgressLine {
 public:
  void show(int64_t done, int64_t total) {
    if (!terminal_) return;
    const auto now = Clock::now();
    if (done < total && now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
    const double left = static_cast<double>(total - done) / std::max(rate, 1.0);
    std::cerr << text("\r\033[Ktokenizing  ", 100 * done / std::max<int64_t>(total, 1), "% of ", format_bytes(total), "  ",
                      format_bytes(static_cast<int64_t>(rate)), "/s  ",
                      done < total ? "about " + format_duration(left) + " left" : "done in " + format_duration(seconds))
              << (done < total ? "" : "\n") << std::flush;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point start_ = Clock::now(), shown_ = start_ - std::chrono::seconds(1);
};

// Options of `tokenize` by their names.
struct TokenizeNames {
  std::string tokenizer = "character", format = "llmc", input_format = "auto", separator = "auto";
};

TokenizerHandle tokenizer_named(const std::string& name, const std::vector<std::string>& texts) {
  if (name == "byte") return make_byte_tokenizer();
  return name == "character" ? make_character_tokenizer_from_files(texts) : read_tokenizer(name);
}

TokenizerHandle tokenizer_of_documents(const std::string& name, const TokenizeOptions& options) {
  for (size_t i = 0; name == "character" && i < options.documents.inputs.size(); ++i)
    if (options.documents.formats[i] == InputFormat::jsonl)
      throw DataError(text("--tokenizer character is built from plain text, and ", options.documents.inputs[i],
                           " is JSONL; name a tokenizer.json, a directory with one, a manifest, or byte"));
  return tokenizer_named(name, options.documents.inputs);
}

// Set by SIGINT and SIGTERM: the work ends as by an error, so that no temporary file stays behind.
volatile std::sig_atomic_t interrupted = 0;
void catch_interrupts() {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
}
void throw_if_interrupted() {
  if (interrupted != 0) throw Error(ExitCode::stopped, "interrupted; nothing was written");
}

void tokenize(TokenizeOptions options, const std::vector<std::string>& patterns, const TokenizeNames& names) {
  DocumentOptions& documents = options.documents;
  documents.inputs = expand_files(patterns, "input");
  for (const std::string& input : documents.inputs)
    documents.formats.push_back(names.input_format == "auto"    ? format_of_input(input)
                                : names.input_format == "jsonl" ? InputFormat::jsonl
                                                                : InputFormat::text);
  if (documents.separator_line.find_first_of("\r\n") != std::string::npos)
    throw ConfigError("--separator-line is one line, without line breaks");
  options.format = names.format == "nanogpt" ? TokenFormat::nanogpt : TokenFormat::llmc;
  options.separator = names.separator == "none"          ? DocumentSeparator::none
                      : names.separator == "end_of_text" ? DocumentSeparator::end_of_text
                                                         : DocumentSeparator::automatic;
  if (options.threads == 0) options.threads = allowed_processors();
  const TokenizerHandle tokenizer = tokenizer_of_documents(names.tokenizer, options);
  ProgressLine line;
  options.progress = [&](int64_t done, int64_t total) {
    throw_if_interrupted();
    line.show(done, total);
  };
  catch_interrupts();
  const TokenizeResult result = tokenize_files(options, *tokenizer);
  std::cout << format_count(result.tokens) << " tokens of a " << tokenizer->name() << " vocabulary of "
            << format_count(tokenizer->vocabulary_size()) << " in " << result.files.size()
            << (result.files.size() == 1 ? " file: " : " files: ") << result.files.front()
            << (result.files.size() == 1 ? "" : " ... " + result.files.back()) << "\n"
            << format_count(result.documents) << (result.documents == 1 ? " document" : " documents") << ", "
            << (result.separated ? text("each after the end-of-text id ", *tokenizer->end_of_text()) : "not separated");
  if (result.empty_documents > 0) std::cout << "; left out as empty: " << format_count(result.empty_documents);
  std::cout << "\nmanifest: " << result.manifest << "\n";
}

// Control characters would spoil the table.
std::string printable(std::string_view source) {
  std::string out;
  for (const char c : source) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '.' : c;
  }
  return out;
}

void inspect(const std::vector<std::string>& patterns, const std::string& format, const std::string& tokenizer_name) {
  const std::vector<std::string> files = expand_files(patterns, "input");
  if (tokenizer_name == "character" && detect_format(files, format) != TokenFormat::text)
    throw DataError("--tokenizer character is built from text, and these are token ids; name the manifest written beside them");
  const TokenizerHandle tokenizer = tokenizer_name.empty() ? nullptr : tokenizer_named(tokenizer_name, files);
  std::vector<std::vector<std::string>> rows = {{"file", "format", "bytes", "tokens", "smallest id", "largest id", "starts with"}};
  int64_t bytes = 0, tokens = 0;
  for (const std::string& file : files) {
    const FileSummary found = inspect_file(file, format, tokenizer);
    std::vector<std::string> ids;
    for (size_t i = 0; i < std::min<size_t>(found.first.size(), 8); ++i) ids.push_back(std::to_string(found.first[i]));
    rows.push_back({file, std::string(name_of(found.format)), format_count(found.bytes), format_count(found.tokens),
                    std::to_string(found.smallest), std::to_string(found.largest),
                    tokenizer ? '"' + printable(found.preview) + '"' : join(ids, " ")});
    bytes += found.bytes;
    tokens += found.tokens;
  }
  if (files.size() > 1) rows.push_back({"total", "", format_count(bytes), format_count(tokens), "", "", ""});
  std::cout << format_table(rows);
  if (!tokenizer && rows[1][1] == "text") std::cout << "text without --tokenizer: a token is a byte\n";
}

void decode(const std::vector<std::string>& patterns, const std::string& tokenizer_name, const std::string& output, bool overwrite) {
  const std::vector<std::string> files = expand_files(patterns, "input");
  const TokenFormat format = detect_format(files, "auto");
  if (format == TokenFormat::text) throw DataError(files.front() + " holds text, not token ids");
  const TokenizerHandle tokenizer = tokenizer_named(tokenizer_name, files);
  const TokenSourceHandle source = open_tokens(files, format, tokenizer, tokenizer->vocabulary_size());
  catch_interrupts();
  const DecodedDocuments done = decode_documents(*source, *tokenizer, output, overwrite, [](int64_t) { throw_if_interrupted(); });
  std::cout << format_count(done.documents) << (done.documents == 1 ? " document of " : " documents of ") << format_count(done.tokens)
            << (done.tokens == 1 ? " token in " : " tokens in ") << output
            << (done.repaired == 0
                    ? ""
                    : text("; ", done.repaired, done.repaired == 1 ? " was not UTF-8 and holds U+FFFD" : " were not UTF-8 and hold U+FFFD"))
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("dmuon_data: turns text into token files and shows what data files hold");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dmuon_data tokenize data/tinyshakespeare.txt --output data/shakespeare\n"
      "      writes data/shakespeare_000000.bin (llm.c shards) and data/shakespeare.json (the manifest with the tokenizer)\n"
      "  dmuon_data tokenize 'corpus/*.txt' --tokenizer byte --shard-tokens 50000000 --output data/corpus\n"
      "  dmuon_data tokenize 'web/*.jsonl' --tokenizer models/gpt2 --output data/web\n"
      "      one document a line, in the string \"text\" of its object, each after the end-of-text id\n"
      "  dmuon_data inspect 'data/shakespeare_*.bin' --tokenizer data/shakespeare.json\n"
      "\n"
      "Exit codes: 0 done, 2 bad input or usage, 5 a file could not be written, 75 interrupted.");

  std::vector<std::string> patterns;
  TokenizeOptions options;
  TokenizeNames names;
  std::string inspect_format = "auto", inspect_tokenizer;
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "text or JSONL files to token files, in constant memory, on all cores");
  tokenize_command->add_option("input", patterns, "text or JSONL files or quoted glob patterns, in order")->required();
  tokenize_command->add_option("-o,--output,--out", options.output, "prefix of the files written: PREFIX_000000.bin ... and PREFIX.json")
      ->required();
  tokenize_command
      ->add_option("--tokenizer", names.tokenizer,
                   "character, byte, a Hugging Face directory, or a JSON file (tokenizer.json or the manifest of other token files)")
      ->capture_default_str();
  tokenize_command
      ->add_option("--format", names.format,
                   "llmc: shards with a header, uint16 ids up to a vocabulary of 65,536, else uint32; nanogpt: bare uint16 ids")
      ->check(CLI::IsMember({"llmc", "nanogpt"}))
      ->capture_default_str();
  tokenize_command
      ->add_option("--input-format", names.input_format,
                   "text: a file is a document; jsonl: a line is a document; auto: jsonl for *.jsonl and *.ndjson, else text")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  tokenize_command->add_option("--jsonl-field", options.documents.jsonl_field, "the string of each JSON object that is the document")
      ->capture_default_str();
  tokenize_command->add_option("--separator-line", options.documents.separator_line,
                               "text: a line that reads so, e.g. '<|endoftext|>', lies between two documents");
  tokenize_command
      ->add_option("--document-separator", names.separator,
                   "end_of_text: the tokenizer's end-of-text id goes before every document; auto: where the tokenizer has one")
      ->check(CLI::IsMember({"auto", "end_of_text", "none"}))
      ->capture_default_str();
  tokenize_command->add_option("--shard-tokens", options.shard_tokens, "tokens a file")->check(integer_from(1))->capture_default_str();
  options.threads = 0;
  tokenize_command->add_option("--threads", options.threads, "0: all processors; the files do not depend on it")
      ->check(integer_between(0, 1024))
      ->capture_default_str();
  tokenize_command->add_flag("--overwrite", options.overwrite, "replace earlier files of the same prefix");

  CLI::App* inspect_command = app.add_subcommand("inspect", "format, counts, range of ids and first tokens of data files");
  inspect_command->add_option("input", patterns, "data files or quoted glob patterns")->required();
  inspect_command->add_option("--format", inspect_format, "what the files are, where auto guesses wrong")
      ->check(CLI::IsMember({"auto", "text", "nanogpt", "llmc"}))
      ->capture_default_str();
  inspect_command->add_option(
      "--tokenizer", inspect_tokenizer,
      "byte, character (text only) or a JSON file: decodes the first tokens, and checks that every id has a meaning");

  std::string decoded;
  CLI::App* decode_command = app.add_subcommand("decode", "token files back to their documents, as JSONL");
  decode_command->add_option("input", patterns, "token files or quoted glob patterns, in order")->required();
  decode_command->add_option("-o,--output", decoded, "file of lines {\"text\": \"...\"}, one a document")->required();
  decode_command->add_option("--tokenizer", inspect_tokenizer, "of the files; its end-of-text token separates the documents")->required();
  decode_command->add_flag("--overwrite", options.overwrite, "replace an earlier file of this name");

  return run_program(app, argc, argv, [&] {
    if (tokenize_command->parsed()) tokenize(options, patterns, names);
    if (inspect_command->parsed()) inspect(patterns, inspect_format, inspect_tokenizer);
    if (decode_command->parsed()) decode(patterns, inspect_tokenizer, decoded, options.overwrite);
  });
}
