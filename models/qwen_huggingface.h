// Qwen2, Qwen2.5 (model_type qwen2) and Qwen3 in the directories of the Hugging Face tools.
#pragma once

#include "dmuon/nn/huggingface.h"

namespace dmuon {

HuggingFaceFamily qwen_huggingface();

}  // namespace dmuon
