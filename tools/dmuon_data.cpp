// dmuon_data: prepares and examines token files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "data/inspect.h"
#include "data/tokenize.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

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

TokenizerHandle tokenizer_named(const std::string& name, const std::vector<std::string>& texts) {
  if (name == "byte") return make_byte_tokenizer();
  return name == "character" ? make_character_tokenizer_from_files(texts) : read_tokenizer(name);
}

void tokenize(TokenizeOptions options, const std::vector<std::string>& patterns, const std::string& tokenizer_name,
              const std::string& format) {
  options.inputs = expand_files(patterns, "input");
  options.format = format == "nanogpt" ? TokenFormat::nanogpt : TokenFormat::llmc;
  ProgressLine line;
  options.progress = [&](int64_t done, int64_t total) { line.show(done, total); };
  const TokenizerHandle tokenizer = tokenizer_named(tokenizer_name, options.inputs);
  const TokenizeResult result = tokenize_files(options, *tokenizer);
  std::cout << format_count(result.tokens) << " tokens of a " << tokenizer->name() << " vocabulary of "
            << format_count(tokenizer->vocabulary_size()) << " in " << result.files.size()
            << (result.files.size() == 1 ? " file: " : " files: ") << result.files.front()
            << (result.files.size() == 1 ? "" : " ... " + result.files.back()) << "\nmanifest: " << result.manifest << "\n";
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("dmuon_data: turns text into token files and shows what data files hold");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dmuon_data tokenize data/tinyshakespeare.txt --output data/shakespeare\n"
      "      writes data/shakespeare_000000.bin (llm.c shards) and data/shakespeare.json (the manifest with the tokenizer)\n"
      "  dmuon_data tokenize 'corpus/*.txt' --tokenizer byte --shard-tokens 50000000 --output data/corpus\n"
      "  dmuon_data inspect 'data/shakespeare_*.bin' --tokenizer data/shakespeare.json\n"
      "\n"
      "Exit codes: 0 done, 2 bad input or usage, 5 a file could not be written.");

  std::vector<std::string> patterns;
  TokenizeOptions options;
  std::string tokenizer = "character", format = "llmc", inspect_format = "auto", inspect_tokenizer;
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "text files to token files, in constant memory");
  tokenize_command->add_option("input", patterns, "text files or quoted glob patterns, in order")->required();
  tokenize_command->add_option("-o,--output", options.output, "prefix of the files written: PREFIX_000000.bin ... and PREFIX.json")
      ->required();
  tokenize_command
      ->add_option("--tokenizer", tokenizer, "character, byte, or a JSON file (a tokenizer or the manifest of other token files)")
      ->capture_default_str();
  tokenize_command
      ->add_option("--format", format,
                   "llmc: shards with a header, uint16 ids up to a vocabulary of 65,536, else uint32; nanogpt: bare uint16 ids")
      ->check(CLI::IsMember({"llmc", "nanogpt"}))
      ->capture_default_str();
  tokenize_command->add_option("--shard-tokens", options.shard_tokens, "tokens a file")->capture_default_str();
  tokenize_command->add_flag("--overwrite", options.overwrite, "replace earlier files of the same prefix");

  CLI::App* inspect_command = app.add_subcommand("inspect", "format, counts, range of ids and first tokens of data files");
  inspect_command->add_option("input", patterns, "data files or quoted glob patterns")->required();
  inspect_command->add_option("--format", inspect_format, "what the files are, where auto guesses wrong")
      ->check(CLI::IsMember({"auto", "text", "nanogpt", "llmc"}))
      ->capture_default_str();
  inspect_command->add_option(
      "--tokenizer", inspect_tokenizer,
      "byte, character (text only) or a JSON file: decodes the first tokens, and checks that every id has a meaning");

  try {
    app.parse(argc, argv);
    if (tokenize_command->parsed()) tokenize(options, patterns, tokenizer, format);
    if (inspect_command->parsed()) inspect(patterns, inspect_format, inspect_tokenizer);
    return static_cast<int>(ExitCode::done);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? static_cast<int>(ExitCode::done) : static_cast<int>(ExitCode::bad_input);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(ExitCode::storage);
  }
}
