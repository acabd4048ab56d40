#include "train/run.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

const ModelFamily& find_family(const std::vector<ModelFamily>& families, const std::string& name) {
  std::vector<std::string> names;
  for (const ModelFamily& family : families) {
    if (family.name == name) return family;
    names.push_back(family.name);
  }
  const std::string close = nearest(name, names);
  throw ConfigError(text("model.family: no family \"", name, "\"", close.empty() ? "" : "; did you mean \"" + close + "\"?",
                         " (available: ", join(names, ", "), ")"));
}

ModelPlan make_model(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families) {
  const Json resolved = to_json(configuration);
  ModelPlan plan;
  plan.settings = resolved.at("model");
  if (configuration.model.vocabulary_size == 0) {
    if (!data.tokenizer)
      throw ConfigError("model.vocabulary_size is required: token shards do not say how many ids there are (GPT-2: 50257)");
    plan.settings.set("vocabulary_size", data.tokenizer->vocabulary_size());
  }
  if (const int64_t classes = plan.settings.at("vocabulary_size").as_integer();
      !configuration.model.from.empty() && data.tokenizer && data.tokenizer->vocabulary_size() > classes)
    throw ConfigError(text("the tokenizer has ", data.tokenizer->vocabulary_size(), " ids, the model in ", configuration.model.from,
                           " (model.from) ", classes, "; they do not belong together"));
  plan.model = find_family(families, configuration.model.family).make(plan.settings);
  plan.model->set_recompute(configuration.training.recompute);
  return plan;
}

TokenData open_data(const Configuration& configuration, TokenizerHandle saved) {
  TokenDataOptions options;
  options.training = configuration.data.train;
  options.validation = configuration.data.validation;
  options.validation_fraction = configuration.data.validation_fraction;
  options.format = configuration.data.format;
  options.tokenizer = configuration.data.tokenizer == "none" ? "auto" : configuration.data.tokenizer;
  options.vocabulary_size = configuration.model.vocabulary_size;
  return open_token_data(options, std::move(saved));
}

StepShape step_shape(const Configuration& configuration, int ranks) {
  StepShape shape;
  shape.global_batch = configuration.training.batch_tokens / configuration.model.context_length;
  const int64_t largest_block = divide_up(shape.global_batch, ranks);
  shape.micro_batch_size =
      configuration.training.micro_batch_size > 0 ? std::min(configuration.training.micro_batch_size, largest_block) : largest_block;
  shape.micro_batches = divide_up(largest_block, shape.micro_batch_size);
  return shape;
}

namespace {

// Path of the first value that differs, "" if none.
std::string first_difference(const Json& a, const Json& b, const std::string& path) {
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.as_object()) {
      const std::string inner = path.empty() ? key : path + "." + key;
      const Json* other = b.find(key);
      if (other == nullptr) return inner;
      if (std::string found = first_difference(value, *other, inner); !found.empty()) return found;
    }
    for (const auto& member : b.as_object())
      if (a.find(member.first) == nullptr) return path.empty() ? member.first : path + "." + member.first;
    return "";
  }
  return a == b ? "" : text(path, " (", a.dump(), " against ", b.dump(), ")");
}

}  // namespace

void require_equal_configuration(Communicator& world, const Configuration& configuration) {
  const std::string mine = to_json(configuration).dump();
  const std::vector<std::string> all = world.all_gather_text(mine);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw ConfigError(text("the configuration of rank ", rank, " on ", world.host(static_cast<int>(rank)), " differs from rank 0's at ",
                             first_difference(parse_json(all[0], "rank 0"), parse_json(all[rank], "another rank"), ""),
                             "; start every rank with the same file and overrides"));
}

}  // namespace dmuon
