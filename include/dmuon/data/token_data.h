// The data of a run: what the configuration asks for, opened, validated and split.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

struct TokenDataOptions {
  std::vector<std::string> training;    // paths and glob patterns
  std::vector<std::string> validation;  // empty: the last `validation_fraction` of the training tokens
  double validation_fraction = 0.1;     // in [0, 1); 0 with no validation files: no validation
  std::string format = "auto";          // "auto", "text", "nanogpt", "llmc"
  // Text: "character" or "byte"; "auto" is character. Token files take theirs from the manifest that `dmuon_data tokenize`
  // wrote beside them, if any, whichever of these three is given. "none": no tokenizer. Otherwise a JSON file.
  std::string tokenizer = "auto";
  int64_t vocabulary_size = 0;  // ids the model accepts; 0: those of the tokenizer
};

struct TokenData {
  TokenSourceHandle training;
  TokenSourceHandle validation;  // null: none
  TokenizerHandle tokenizer;     // null: token files without one, so text cannot be shown
  // What the data are: format, tokenizer hash, and for every file role, name, bytes, tokens, hash. Kept in checkpoints.
  Json fingerprint;
};

// `saved` is the tokenizer of the checkpoint being resumed and replaces the one the options would build. DataError for
// every file that cannot be used, a tokenizer larger than the model's vocabulary, or a file in both roles.
TokenData open_token_data(const TokenDataOptions& options, TokenizerHandle saved = nullptr);

// DataError naming what differs between the data a checkpoint was written with and those opened now. Names are not
// compared: the same files in another directory are the same data.
void require_same_data(const Json& saved, const Json& current);

}  // namespace dmuon
