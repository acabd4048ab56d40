// The names and the JSON file by which shards that were written together are known: PREFIX_000000.bin, ... and
// PREFIX.json, which holds format, tokens, the files and the tokenizer.
#pragma once

#include <span>
#include <string>

#include "dmuon/data/tokenizer.h"

namespace dmuon {

std::string shard_name(const std::string& prefix, size_t index);
std::string manifest_name(const std::string& prefix);

// The tokenizer of the manifests beside token files; null if no file has one. A manifest speaks for the files it lists.
// DataError if it is damaged, a listed file has another size now, or two files come from different tokenizers.
TokenizerHandle tokenizer_beside(std::span<const std::string> files);

// Checks a shard's bytes against the hash in the manifest beside it, if that lists the file with one. DataError if they differ:
// the file was damaged or replaced. Reads the whole file.
void check_listed_hash(const std::string& file);

}  // namespace dmuon
