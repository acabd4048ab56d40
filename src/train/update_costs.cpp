#include "train/update_costs.h"

#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "shard/update_profile.h"
#include "train/agreement.h"

namespace dmuon {

CostModel agree_on_update_costs(Communicator& world, Backend& backend, const UpdateCostRequest& request) {
  std::string mine;
  agreed(world, [&] {
    if (world.rank() != 0) return;
    const CostKey key = update_profile_key(backend, request.rules, request.published_dtype, request.tuning);
    MeasurementCache cache(std::string(cost_cache_kind), key.machine, request.cache_directory);
    const std::vector<UpdateProfileItem> items = update_profile_items(request.tensors, request.window_units);
    UpdateProfileOptions options;
    options.budget_seconds = request.budget_seconds;
    options.published_dtype = request.published_dtype;
    const CostModel model = measure_updates(backend, request.rules, items, options, CostModel::read(cache, key));
    model.store(cache);
    cache.save();
    log_information(text("costs: complete updates of ", items.size(), " shapes, kept in ",
                         cache.path().empty() ? std::string("memory") : cache.path().string()));
    mine = model.to_json().dump();
  });
  const std::string shared = world.broadcast_text(mine, 0);
  CostModel model;
  agreed(world, [&] { model = CostModel::from_json(parse_json(shared, "rank 0's costs"), "rank 0's costs"); });
  return model;
}

}  // namespace dmuon
