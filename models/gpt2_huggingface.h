// GPT-2 in the directories of the Hugging Face tools (model_type gpt2, GPT2LMHeadModel). Its linear layers keep [in, out], and
// query, key and value share one tensor, c_attn.
#pragma once

#include "dmuon/nn/huggingface.h"

namespace dmuon {

HuggingFaceFamily gpt2_huggingface();

}  // namespace dmuon
