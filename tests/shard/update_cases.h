// Which updates are compared.
#pragma once

#include <string>
#include <vector>

#include "shard/update_job.h"

namespace dmuon::testing {

// Everything that may differ without changing bits.
inline std::vector<UpdateCase> update_cases(int ranks) {
  std::vector<UpdateCase> cases;
  const auto add = [&](std::string name, auto change) {
    UpdateCase c;
    change(c);
    c.name = std::move(name);
    cases.push_back(std::move(c));
  };
  add("greedy, 2 threads", [](UpdateCase& c) { c.threads = 2; });
  add("round robin, windows of one unit", [](UpdateCase& c) {
    c.strategy = PlanStrategy::round_robin;
    c.threads = 3;
    c.window_units = 1;
  });
  add("rank 0 owns all", [](UpdateCase& c) {
    c.strategy = PlanStrategy::rank0;
    c.window_units = 100;
  });
  add("mixed-integer planner", [](UpdateCase& c) { c.strategy = PlanStrategy::milp; });
  for (uint64_t seed = 1; seed <= 3; ++seed)
    add(text("random owners ", seed), [&](UpdateCase& c) {
      c.owner_seed = seed;
      c.window_units = 2;
      c.threads = static_cast<int>(1 + seed % 2);
    });
  for (int replicas = 1; replicas <= ranks; ++replicas) {
    if (ranks % replicas != 0) continue;
    for (int stage = 1; stage <= 3; ++stage)
      add(text(replicas, " replicas, stage ", stage), [&](UpdateCase& c) {
        c.options.replicas = replicas;
        c.options.stage = stage;
      });
    add(text(replicas, " replicas, mixed stages, nothing overlaps"), [&](UpdateCase& c) {
      c.options.replicas = replicas;
      c.options.unit_stages = {3, 1, 2, 3};
      c.options.overlap = false;
      c.micro_batches = 2;
      c.owner_seed = 7;
    });
    add(text(replicas, " replicas, replicated"), [&](UpdateCase& c) {
      c.options.replicas = replicas;
      c.options.distribution = Distribution::replicated;
      c.threads = 2;
    });
    add(text(replicas, " replicas, gather"), [&](UpdateCase& c) {
      c.options.replicas = replicas;
      c.options.distribution = Distribution::gather;
      c.window_units = replicas;
    });
    add(text(replicas, " replicas, stage 3, deferred"), [&](UpdateCase& c) {
      c.options.replicas = replicas;
      c.options.stage = 3;
      c.mode = HostMode::deferred;
    });
  }
  for (int look_ahead : {0, 1, 3})
    add(text("stage 3, look-ahead ", look_ahead), [&](UpdateCase& c) {
      c.options.stage = 3;
      c.options.look_ahead = look_ahead;
    });
  for (GatherForm form : {GatherForm::all_gather, GatherForm::broadcasts, GatherForm::padded})
    add(text("form ", static_cast<int>(form)), [&](UpdateCase& c) {
      c.options.publish_form = form;
      c.options.stage = 3;
    });
  add("stage 1, three micro-batches", [](UpdateCase& c) {
    c.options.stage = 1;
    c.micro_batches = 3;
  });
  add("stage 1, micro-batches not announced", [](UpdateCase& c) {
    c.options.stage = 1;
    c.micro_batches = 2;
    c.announce = false;
  });
  add("stage 1, reduced every micro-batch", [](UpdateCase& c) {
    c.options.stage = 1;
    c.options.reduce_every_micro_batch = true;
    c.micro_batches = 2;
  });
  add("gradients travel as bfloat16", [](UpdateCase& c) {
    c.options.gradient_dtype = DType::bfloat16;
    c.micro_batches = 2;
  });
  for (int stage = 1; stage <= 3; ++stage)
    add(text("ranks that use different units, stage ", stage), [&](UpdateCase& c) {
      c.options.stage = stage;
      c.options.look_ahead = stage - 1;
      c.partial = true;
      c.micro_batches = 2;
    });
  return cases;
}

// What a device does differently, waiting and moving, in as few cases as show it.
inline std::vector<UpdateCase> device_cases(int ranks) {
  std::vector<UpdateCase> cases;
  for (UpdateCase& c : update_cases(ranks)) {
    const auto named = [&](std::string_view part) { return c.name.find(part) != std::string::npos; };
    const bool chosen = named("stage 1, three") || named("mixed stages") || named("form") || named("replicated") || named("gather") ||
                        named("look-ahead 3") || named("different units, stage 3") || named("bfloat16");
    if (!chosen || c.mode != HostMode::normal) continue;
    c.rules = Rules::sgd;
    cases.push_back(c);
  }
  return cases;
}

// Muon and AdamW on devices, with matrices small enough for kernels that run on a host: every stage on every grid, and the baselines.
inline UpdateCase device_muon() { return {.rules = Rules::muon, .long_side = 64, .steps = test_device_is_guarded() ? 1 : 3}; }
inline std::vector<UpdateCase> device_muon_cases(int ranks) {
  std::vector<UpdateCase> cases;
  for (UpdateCase& c : update_cases(ranks)) {
    const auto ends = [&](std::string_view part) { return c.name.ends_with(part); };
    const bool chosen = c.name.starts_with("random owners 1") || ends("replicas, replicated") || ends("replicas, gather") ||
                        ends("stage 1") || ends("stage 2") || ends("stage 3");
    if (!chosen || c.partial || c.mode != HostMode::normal) continue;
    c.name += ", Muon";
    c.long_side = device_muon().long_side;
    c.steps = device_muon().steps;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace dmuon::testing
