#include "dmuon/nn/model.h"
#include "models/gpt2.h"
#include "models/qwen.h"

namespace dmuon {

std::vector<ModelFamily> models() {
  return {
      {"gpt2", [](const Json& settings) { return std::make_unique<Gpt2>(Gpt2Settings::from_json(settings)); }},
      {"qwen", [](const Json& settings) { return std::make_unique<Qwen>(QwenSettings::from_json(settings)); }},
  };
}

}  // namespace dmuon
