// What the fuzzers feed: each target takes any bytes and must end in success or in a typed error (dmuon::Error). Anything else, a
// crash, another exception, a value outside the file, ends the process. scripts/fuzz.sh runs them under libFuzzer;
// test_fuzz_corpus.cpp replays the corpus in the ordinary tests.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dmuon::fuzz {

void safetensors(std::string_view input);  // a safetensors file
void shards(std::string_view input);       // two bytes n | n bytes of model.safetensors.index.json | the file a.safetensors
void config(std::string_view input);       // a config.json, and the layout of what it describes
void tokenizer(std::string_view input);    // a tokenizer.json, which then encodes and decodes a text
// How it is read (bit 0: JSONL; bit 1: with lines that separate; the others: bytes of a batch) | longest line | a file of documents
void documents(std::string_view input);

// Whether each target has a bug for its fuzzer to find: 1 in the check of the fuzzers themselves.
extern const bool planted_bug;

struct Target {
  const char* name;  // of its folder in corpus/
  void (*run)(std::string_view input);
};
std::span<const Target> targets();

}  // namespace dmuon::fuzz
