#include <algorithm>

#include "config/reader.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Keys whose 0 means that something else decides.
constexpr std::string_view zero_follows[] = {"vocabulary_size", "feed_forward_width", "key_value_heads", "head_width", "maximum_positions"};

bool leaves_open(std::string_view key, const Json& value) {
  return value == Json(0) && std::find(std::begin(zero_follows), std::end(zero_follows), key) != std::end(zero_follows);
}

bool same(const Json& a, const Json& b) { return a == b || (a.is_number() && b.is_number() && a.as_number() == b.as_number()); }

// What resolve() will make of it.
std::string output_of(const Json& tree) {
  const auto string_at = [&](const char* key) {
    const Json* value = tree.find(key);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  Configuration configuration;
  configuration.output = string_at("output");
  if (const std::string name = string_at("name"); !name.empty()) configuration.name = name;
  resolve(configuration);
  return configuration.output;
}

}  // namespace

void apply_import(Json& tree, const ModelImport& import_model, Findings& findings) {
  Json* model = tree.is_object() ? tree.find("model") : nullptr;
  const Json* from = model != nullptr && model->is_object() ? model->find("from") : nullptr;
  if (from == nullptr || !from->is_string() || from->as_string().empty()) return;  // other types: read_tree complains
  const std::string directory = from->as_string();
  const ImportedModel imported = import_model(directory, output_of(tree));
  for (const auto& [key, value] : imported.settings.as_object()) {
    const Json* written = model->find(key);
    if (written == nullptr || leaves_open(key, *written)) {
      model->set(key, value);
      continue;
    }
    const bool shorter = key == "context_length" && imported.shorter_context && written->is_number() && written->as_number() >= 1 &&
                         written->as_number() < value.as_number();
    if (!same(*written, value) && !shorter)
      findings.add_value("model." + key, *written,
                         text("the model in ", directory, " (model.from) has ", value.dump(), "; leave the key out",
                              key == "context_length" && imported.shorter_context ? ", or choose a shorter one" : ""));
  }
  if (imported.tokenizer.empty()) return;
  if (!tree.find("data")) tree.set("data", Json::object());
  Json* data = tree.find("data");
  if (data->is_object() && !data->find("tokenizer")) data->set("tokenizer", imported.tokenizer);
}

}  // namespace dmuon
