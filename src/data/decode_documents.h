// What `dmuon_data decode` does: token files back to the documents they were made of, one JSON object a line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

struct DecodedDocuments {
  int64_t documents = 0;
  int64_t tokens = 0;    // separators left out
  int64_t repaired = 0;  // documents that were not UTF-8 and hold U+FFFD now
};

// Writes {"text": "..."} for every stretch of `source` between the ids that end_of_text() names; empty stretches are left out. A
// source cut inside a character loses that character's bytes at either end. Memory: the longest document, of at most 256
// MiB. The file appears under its name when it is complete. DataError if `output` exists and `overwrite` is not set, for a longer document,
// if the tokenizer has no such id, or the source holds an id that has no meaning; StorageError for the disk. `progress` is told the tokens
// done.
DecodedDocuments decode_documents(const TokenSource& source, const Tokenizer& tokenizer, const std::string& output, bool overwrite = false,
                                  const std::function<void(int64_t)>& progress = {});

}  // namespace dmuon
