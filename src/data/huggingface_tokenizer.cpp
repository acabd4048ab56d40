#include "dmuon/core/error.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

TokenizerHandle make_huggingface_tokenizer(const std::string&) { throw ConfigError("tokenizer.json cannot be read yet"); }
TokenizerHandle make_huggingface_tokenizer(std::vector<TokenizerFile>) { throw ConfigError("tokenizer.json cannot be read yet"); }

}  // namespace dmuon
