// Which form of all_gather_v publishes each region of the units.
#pragma once

#include <vector>

#include "shard/unit_store.h"

namespace dmuon {

// By Region::index; collective. A fixed form of the options holds for all. Otherwise the forms are timed on the values of one
// region of every distinct division into slots, between nodes where there are several, and rank 0's choice holds for all
// ranks. Values are not changed by it: every form gathers what the owners hold.
std::vector<GatherForm> choose_publish_forms(ShardJob& job, UnitStore& store);

}  // namespace dmuon
