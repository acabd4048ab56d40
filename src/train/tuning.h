// Measurements before the first step: made by one rank of each kind of device, the lowest, and adopted by the others of that kind.
#pragma once

#include <string>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/config/configuration.h"
#include "dmuon/nn/parameter.h"
#include "dmuon/shard/sharded_model.h"

namespace dmuon {

// The user's cache directory, unless the configuration names one.
Path cache_directory(const TuningConfiguration& configuration);

struct TuningRequest {
  const Configuration& configuration;
  const Inventory& inventory;
  RuleTable& table;
  int slots = 1;       // that share the matrices: ranks, or 1 where every rank updates all
  int vote_slots = 1;  // that share those voted on: shards of a replica
  int window_units = 4;
  // Content of the checkpoint's tuning.json (rank 0); empty: none. Rules whose numerics may be tuned take their choices
  // from it, so that a resumed run computes what it would have computed.
  std::string stored;
};
// Collective. Rules measure and choose (UpdateRule::tune) where the configuration asks for it. Every rank adopts the choices of rank 0;
// where some ranks have other hardware, libraries or threads, the lowest of them then measures what changes no bits once more, and
// they adopt its choices. Returns rank 0's, one entry per rule, null where nothing was chosen: the checkpoint's tuning.json.
Json tune_rules(Communicator& world, Backend& backend, const TuningRequest& request);

}  // namespace dmuon
