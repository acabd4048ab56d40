// The texts that a run writes now and then, to look at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dmuon/config/configuration.h"
#include "dmuon/core/file.h"
#include "dmuon/data/tokenizer.h"
#include "dmuon/nn/model.h"
#include "train/stop_request.h"

namespace dmuon {

struct SampleRequest {
  const SampleConfiguration& configuration;
  const Tokenizer& tokenizer;
  const std::vector<int32_t>& prompt;
  int64_t step = 0;
  // A forward pass takes all ranks: then all generate the same. Else the first rank generates while the others listen.
  bool by_all = false;
};

// sample.count texts, each under a line "--- sample 1 after step 20"; on ranks but the first it may be empty. Nothing where the
// ranks agreed to stop meanwhile: asked between tokens, at most five times a second where one rank generates. Every rank throws the
// same AgreedError where one fails. Collective.
std::optional<std::string> generate_samples(Backend& backend, Communicator& world, Model& model, const SampleRequest& request,
                                            StopRequest& stop);

// StorageError names the path.
void append_samples(const Path& path, const std::string& samples);

}  // namespace dmuon
