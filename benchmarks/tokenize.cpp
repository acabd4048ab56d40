// Text in memory to ids in memory, on one or several threads: what dmuon_data tokenize does between reading and writing.
#include <sys/resource.h>

#include <chrono>

#include "data/document_reader.h"
#include "data/ordered_work.h"
#include "data/tokenize.h"
#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "support.h"

namespace dmuon::bench {
namespace {

const std::string& own_option(const Arguments& arguments, const std::string& name) {
  const auto found = arguments.own.find(name);
  if (found == arguments.own.end())
    throw ConfigError("tokenize needs --tokenizer DIR|FILE and --input FILE (text, or *.jsonl with the documents in \"text\")");
  return found->second;
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// All documents, decoded, in pieces that may be encoded apart.
std::vector<std::vector<std::string>> load(const std::string& file, const Tokenizer& tokenizer, int64_t& documents, int64_t& bytes) {
  DocumentOptions options;
  options.inputs = {file};
  options.formats = {format_of_input(file)};
  DocumentReader reader(options, tokenizer);
  JsonField field(options.jsonl_field);
  std::vector<std::vector<std::string>> jobs;
  for (TextBatch batch; reader.next(batch);) {
    jobs.emplace_back();
    for (const TextPiece& piece : batch.pieces) {
      std::string text = batch.bytes.substr(piece.begin, piece.size);
      if (piece.json) {
        std::string decoded;
        field.begin();
        field.feed(text, decoded);
        field.finish();
        text = std::move(decoded);
      }
      documents += piece.begins_document;
      bytes += std::ssize(text);
      jobs.back().push_back(std::move(text));
    }
  }
  return jobs;
}

struct Job {
  const std::vector<std::string>* pieces = nullptr;
  std::vector<int32_t> ids;
};

Json::Array run(const Arguments& arguments) {
  const std::string file = own_option(arguments, "input");
  const TokenizerHandle tokenizer = read_tokenizer(own_option(arguments, "tokenizer"));
  int64_t documents = 0, bytes = 0;
  const std::vector<std::vector<std::string>> jobs = load(file, *tokenizer, documents, bytes);
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(bytes));
  Json::Array rows;
  // The first pass meets every word for the first time; later ones know those that the word caches still hold.
  for (int pass = 0; pass < arguments.pairs; ++pass) {
    ids.clear();
    size_t next = 0;
    const double processor = processor_seconds();
    const auto start = std::chrono::steady_clock::now();
    OrderedWork<Job> work(
        arguments.threads, static_cast<size_t>(arguments.threads == 1 ? 1 : 4 * arguments.threads),
        [&](Job& job) {
          if (next == jobs.size()) return false;
          job.pieces = &jobs[next++];
          return true;
        },
        [&](Job& job) {
          job.ids.clear();
          for (const std::string& piece : *job.pieces) tokenizer->encode(piece, file, 0, job.ids);
        },
        [&](Job& job) { ids.insert(ids.end(), job.ids.begin(), job.ids.end()); });
    work.run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    Json row = Json::object();
    row.set("pass", pass == 0 ? "first" : "repeated");
    row.set("threads", arguments.threads);
    row.set("documents", documents);
    row.set("bytes", bytes);
    row.set("tokens", std::ssize(ids));
    row.set("seconds", seconds);
    row.set("processor_seconds", processor_seconds() - processor);
    row.set("megabytes_per_second", static_cast<double>(bytes) / seconds / 1e6);
    row.set("ids_hash", hash_to_hex(hash_bytes(ids.data(), std::ssize(ids) * 4)));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Benchmark tokenize_benchmark() {
  return {"tokenize",
          "Text to ids in memory; --pairs: passes, of which the first meets every word for the first time",
          {{"tokenizer", "Directory or file of a tokenizer"}, {"input", "Text, or *.jsonl with a document a line in the string \"text\""}},
          run};
}

}  // namespace dmuon::bench
