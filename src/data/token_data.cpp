#include "dmuon/data/token_data.h"

#include <cmath>
#include <filesystem>

#include "data/manifest.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

TokenizerHandle make_tokenizer(const std::string& wanted, TokenFormat format, const std::vector<std::string>& training,
                               const std::vector<std::string>& all) {
  if (wanted == "none") return nullptr;
  if (wanted != "auto" && wanted != "character" && wanted != "byte") return read_tokenizer(wanted);
  if (format != TokenFormat::text) return tokenizer_beside(all);
  return wanted == "byte" ? make_byte_tokenizer() : make_character_tokenizer_from_files(training);
}

void refuse_overlap(const std::vector<std::string>& training, const std::vector<std::string>& validation) {
  for (const std::string& a : training)
    for (const std::string& b : validation)
      if (std::filesystem::equivalent(a, b))
        throw DataError(text("data.validation: ", b, " is also training data", a == b ? "" : text(" (as ", a, ")"),
                             "; validate on other files, or leave data.validation empty and set data.validation_fraction"));
}

void describe(const TokenSource& source, std::string_view role, Json& files) {
  for (const TokenFile& file : source.files()) {
    Json entry = Json::object();
    entry.set("role", role);
    entry.set("name", file.name);
    entry.set("bytes", file.bytes);
    entry.set("tokens", file.tokens);
    entry.set("hash", file.hash);
    files.push_back(std::move(entry));
  }
}

}  // namespace

TokenData open_token_data(const TokenDataOptions& options, TokenizerHandle saved) {
  if (options.training.empty()) throw DataError("data.train names no file");
  if (!(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0))
    throw ConfigError(text("data.validation_fraction is ", options.validation_fraction, ", expected 0 <= fraction < 1"));
  const std::vector<std::string> training = expand_files(options.training, "data.train");
  const std::vector<std::string> validation = expand_files(options.validation, "data.validation");
  refuse_overlap(training, validation);
  std::vector<std::string> all = training;
  all.insert(all.end(), validation.begin(), validation.end());
  const TokenFormat format = detect_format(all, options.format);

  TokenData data;
  data.tokenizer = saved ? std::move(saved) : make_tokenizer(options.tokenizer, format, training, all);
  const int64_t vocabulary = options.vocabulary_size > 0 ? options.vocabulary_size : data.tokenizer ? data.tokenizer->vocabulary_size() : 0;
  data.training = open_tokens(training, format, data.tokenizer, vocabulary);
  Json files = Json::array();
  describe(*data.training, "training", files);
  if (!validation.empty()) {
    data.validation = open_tokens(validation, format, data.tokenizer, vocabulary);
    describe(*data.validation, "validation", files);
  } else if (options.validation_fraction > 0.0) {
    const int64_t tokens = data.training->tokens();
    const auto kept = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * (1.0 - options.validation_fraction)));
    data.validation = slice(data.training, kept, tokens - kept);
    data.training = slice(data.training, 0, kept);
  }

  data.fingerprint = Json::object();
  data.fingerprint.set("format", name_of(format));
  data.fingerprint.set("tokenizer", data.tokenizer ? Json(data.tokenizer->hash()) : Json());
  data.fingerprint.set("training_tokens", data.training->tokens());
  data.fingerprint.set("validation_tokens", data.validation ? data.validation->tokens() : int64_t{0});
  data.fingerprint.set("files", std::move(files));
  return data;
}

void require_same_data(const Json& saved, const Json& current) {
  const auto refuse = [](const std::string& what) {
    throw DataError(text("the data differ from those of the checkpoint: ", what, "; restore the data, or start a new run"));
  };
  const auto compare = [&](const Json& a, const Json& b, std::string_view key, const std::string& where) {
    if (a.at(key) != b.at(key)) refuse(text(where, key, " was ", a.at(key).dump(), ", found ", b.at(key).dump()));
  };
  compare(saved, current, "format", "");
  const Json::Array& before = saved.at("files").as_array();
  const Json::Array& now = current.at("files").as_array();
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    const std::string& name = now[i].at("name").as_string();
    for (const std::string_view key : {"role", "bytes", "hash", "tokens"})
      compare(before[i], now[i], key,
              text("file ", i + 1, ", ", name,
                   name == before[i].at("name").as_string() ? "" : text(" (was ", before[i].at("name").as_string(), ")"), ": "));
  }
  if (before.size() != now.size()) {
    const Json& odd = before.size() > now.size() ? before[now.size()] : now[before.size()];
    refuse(text("the number of files was ", before.size(), ", found ", now.size(), "; the first ",
                before.size() > now.size() ? "missing" : "new", " one is ", odd.at("name").as_string()));
  }
  for (const std::string_view key : {"tokenizer", "training_tokens", "validation_tokens"}) compare(saved, current, key, "");
}

}  // namespace dmuon
