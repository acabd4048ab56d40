#include "dmuon/nn/model.h"
#include "models/gpt2.h"
#include "models/gpt2_huggingface.h"
#include "models/qwen.h"
#include "models/qwen_huggingface.h"

namespace dmuon {

std::vector<ModelFamily> models() {
  return {
      {"gpt2", [](const Json& settings) { return std::make_unique<Gpt2>(Gpt2Settings::from_json(settings)); }, gpt2_huggingface()},
      {"qwen", [](const Json& settings) { return std::make_unique<Qwen>(QwenSettings::from_json(settings)); }, qwen_huggingface()},
  };
}

}  // namespace dmuon
