#include "train/same_run.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

void require_same_run(const CheckpointReader& reader, const Configuration& configuration, const Json& model_settings, const Json& rules) {
  const auto differ = [&](const std::string& what, const Json& saved, const Json& now) {
    if (!(saved == now))
      throw CheckpointError(text(reader.path().string(), " was written with another ", what, ": ", saved.dump(), " there, ", now.dump(),
                                 " now; resume with the configuration of the run, or start a new one with another \"output\""));
  };
  const Json saved = reader.configuration();
  differ("seed", saved.at("seed"), Json(configuration.seed));
  const Json saved_model = parse_json(reader.text_of("model.json"), "model.json");
  for (const auto& [key, value] : model_settings.as_object())
    if (const Json* other = saved_model.find(key)) differ("model." + key, *other, value);
  const Json saved_rules = parse_json(reader.text_of("rules.json"), "rules.json");
  if (saved_rules.as_array().size() != rules.as_array().size()) differ("routing of parameters to rules", saved_rules, rules);
  for (size_t i = 0; i < rules.as_array().size(); ++i)
    for (const char* key : {"rule", "description", "parameters"})
      differ(text("optimizer ", key), saved_rules.as_array()[i].at(key), rules.as_array()[i].at(key));
}

}  // namespace dmuon
