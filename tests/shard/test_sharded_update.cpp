// Design contract 13.2: given equal reduced gradients, parameters, optimizer state and the clip coefficient are bit-equal
// for every world size, grid, stage, distribution, owner map, planner, batch composition, form of publishing and number of
// threads. Every rank computes the one-rank result itself and compares what it holds and what it computes with to that.
#include "dmuon/comm/world.h"
#include "shard/update_cases.h"
#include "support/mpi_checks.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

bool equal_bits(const std::vector<float>& a, const float* b) { return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0; }

// The last `steps` clip coefficients (all of the job's), parameters, masters, states.
void compare(MpiChecks& checks, Communicator& world, UpdateJob& job, UpdateJob& alone, size_t steps = 4) {
  const std::vector<double> coefficients(alone.coefficients().end() - static_cast<std::ptrdiff_t>(steps), alone.coefficients().end());
  checks.check(job.coefficients() == coefficients, "clip coefficients differ");
  checks.check(job.hash() == alone.hash(), "parameter hashes differ");
  std::map<int, const HeldPiece*> whole;
  for (const HeldPiece& held : alone.sharded().held()) whole[held.piece.tensor] = &held;
  const auto& parameters = job.sharded().inventory().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int index = static_cast<int>(i);
    checks.check(equal_bits(job.values(index), alone.values(index).data()), text(parameters[i].name, " differs"));
  }
  std::vector<double> held_elements(parameters.size(), 0.0);
  for (const HeldPiece& held : job.sharded().held()) {
    const std::string& name = parameters[static_cast<size_t>(held.piece.tensor)].name;
    held_elements[static_cast<size_t>(held.piece.tensor)] += static_cast<double>(held.piece.count);
    const HeldPiece& reference = *whole.at(held.piece.tensor);
    const std::vector<float> master = alone.read(reference.master);
    checks.check(equal_bits(job.read(held.master), master.data() + held.piece.first), text("master of ", name, " differs"));
    for (size_t s = 0; s < held.state.size(); ++s) {
      const std::vector<float> expected = alone.read(reference.state[s]);
      checks.check(equal_bits(job.read(held.state[s]), expected.data() + held.piece.first), text("state ", s, " of ", name, " differs"));
    }
  }
  held_elements = world.all_reduce(held_elements, ReduceOperation::sum);
  for (size_t i = 0; i < parameters.size(); ++i)
    checks.check(held_elements[i] == static_cast<double>(parameters[i].shape.elements()), text(parameters[i].name, " is not held once"));
}

template <class Expected>
void refuses(MpiChecks& checks, Communicator& world, const UpdateCase& c, const std::string& part) {
  std::string found = "nothing";
  try {
    UpdateJob job(world, c);
  } catch (const Expected& error) {
    found = error.what();
  }
  checks.check(found.find(part) != std::string::npos, text("expected \"", part, "\", found: ", found));
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  MpiChecks checks(all);
  const auto self = make_self_communicator();
  const auto run = [&](std::vector<UpdateCase> cases, const UpdateCase& reference) {
    UpdateJob alone(*self, reference);
    for (const UpdateCase& c : cases)
      checks.section(c.name, [&] {
        // Replicas are virtual nodes: no memory is shared between them.
        const auto nodes = all.divide_into_nodes(c.options.replicas, "virtual nodes");
        UpdateJob job(*nodes, c);
        compare(checks, all, job, alone, alone.coefficients().size());
      });
  };
  if (test_device_is_cuda()) {
    if (!test_device_is_guarded()) run(device_cases(all.size()), {.rules = Rules::sgd});
    run(device_muon_cases(all.size()), device_muon());
    const int code = checks.finish();
    world.finish();
    return code;
  }
  run(update_cases(all.size()), {});
  for (Rules rules : {Rules::muon_gram, Rules::muon_per_head, Rules::sgd}) {
    // Sums over many elements, as in real matrices.
    UpdateCase large{.name = "large matrices, stage 3", .rules = rules, .threads = 2, .cut_elements = 16384, .long_side = 8192};
    large.options.stage = 3;
    UpdateCase random = large;
    random.name = "large matrices, random owners";
    random.owner_seed = 5;
    std::vector<UpdateCase> cases = {large, random};
    if (rules == Rules::muon_per_head) {
      for (int stage : {1, 2, 3}) {
        UpdateCase small{.name = text("heads apart, stage ", stage), .rules = rules, .cut_elements = 16384, .long_side = 8192};
        small.options.stage = stage;
        cases.push_back(small);
      }
      for (Distribution distribution : {Distribution::gather, Distribution::replicated}) {
        UpdateCase baseline{.name = text("heads apart, ", distribution == Distribution::gather ? "gather" : "replicated"),
                            .rules = rules,
                            .cut_elements = 16384,
                            .long_side = 8192};
        baseline.options.distribution = distribution;
        cases.push_back(baseline);
      }
    }
    run(cases, {.rules = rules, .cut_elements = 16384, .long_side = 8192});
  }
  // What every rank computes with is rounded once, by the owner.
  std::vector<UpdateCase> narrow;
  for (int replicas = 1; replicas <= all.size(); ++replicas)
    for (int stage = 1; stage <= 3; ++stage) {
      if (all.size() % replicas != 0) continue;
      UpdateCase c{.name = text("values travel as bfloat16, ", replicas, " replicas, stage ", stage), .threads = 1 + stage % 2};
      c.options.compute_dtype = DType::bfloat16;
      c.options.replicas = replicas;
      c.options.stage = stage;
      if (stage == 1) c.mode = HostMode::deferred;
      narrow.push_back(c);
    }
  UpdateCase replicated{.name = "values rounded to bfloat16, replicated"};
  replicated.options.compute_dtype = DType::bfloat16;
  replicated.options.distribution = Distribution::replicated;
  narrow.push_back(replicated);
  UpdateCase reference;
  reference.options.compute_dtype = DType::bfloat16;
  run(narrow, reference);

  // A saved state of four steps goes on in a job of any other kind.
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    UpdateCase saved_case{}, later_case{.steps = 6};
    saved_case.options.compute_dtype = later_case.options.compute_dtype = dtype;
    UpdateJob saved(*self, saved_case), later(*self, later_case);
    for (Distribution distribution : {Distribution::owner, Distribution::gather, Distribution::replicated})
      for (int replicas = 1; replicas <= all.size(); ++replicas) {
        if (all.size() % replicas != 0 || (distribution == Distribution::gather && dtype != DType::float32)) continue;
        UpdateCase c{.steps = 0};
        c.options.distribution = distribution;
        c.options.replicas = replicas;
        c.options.compute_dtype = dtype;
        c.options.stage = distribution == Distribution::owner ? 3 : 2;
        checks.section(text("resumed as ", name_of(distribution), " with ", replicas, " replicas, ", name_of(dtype)), [&] {
          UpdateJob job(all, c);
          job.load(saved);
          job.run(all, 5, 6);
          compare(checks, all, job, later, 2);
        });
      }
  }
  checks.section("one rank's NaN is everybody's decision", [&] {
    UpdateCase c;
    c.options.stage = 3;
    c.not_finite = 2;
    UpdateJob job(all, c);
    checks.check(job.refused() == "blocks.0.a", text("found: ", job.refused()));
  });
  checks.section("units entered in another order than declared", [&] {
    UpdateJob job(all, {});
    job.sharded().begin_step(1);
    job.sharded().begin_micro_batch();
    job.sharded().enter_forward(2);
    job.sharded().leave_forward(2);
    std::string found;
    try {
      job.sharded().enter_forward(1);
    } catch (const ConfigError& error) {
      found = error.what();
    }
    checks.check(found.find("blocks.0 in another order") != std::string::npos, text("found: ", found));
    job.sharded().end_micro_batch();
  });
  checks.section("options that do not fit are refused by name", [&] {
    UpdateCase c;
    c.options.stage = 4;
    refuses<ConfigError>(checks, all, c, "distribution.stage: 4");
    c = {};
    c.options.unit_stages = {1, 2};
    refuses<ConfigError>(checks, all, c, "2 stages for 4 units");
    c = {};
    c.options.compute_dtype = DType::float16;
    refuses<ConfigError>(checks, all, c, "not as float16");
    c = {};
    c.options.look_ahead = -1;
    refuses<ConfigError>(checks, all, c, "look_ahead");
    c = {};
    c.options.distribution = Distribution::gather;
    c.options.compute_dtype = DType::bfloat16;
    refuses<ConfigError>(checks, all, c, "compute_dtype float32");
  });
  if (all.size() > 1) {
    checks.section("ranks with different plans end with the first difference", [&] {
      UpdateCase c{.owner_seed = all.rank() == all.size() - 1 ? 3u : 4u};
      refuses<CommunicationError>(checks, all, c, text("rank ", all.size() - 1, " on"));
      c = {};
      c.options.look_ahead = all.rank() == 0 ? 2 : 3;
      refuses<CommunicationError>(checks, all, c, "look_ahead 3");
    });
    for (int stage : {2, 1})
      checks.section("a replica that differs is noticed and named", [&] {
        UpdateCase c{.rules = Rules::sgd};
        c.options.stage = stage;
        UpdateJob job(all, c);
        if (all.rank() == all.size() - 1) job.spoil(1);
        std::string noticed;
        try {
          job.sharded().check_replicas();
        } catch (const CommunicationError& error) {
          noticed = error.what();
        }
        checks.check(noticed.find("unit blocks.0") != std::string::npos, text("found: ", noticed));
        checks.check(noticed.find(text("rank ", all.size() - 1)) != std::string::npos, text("found: ", noticed));
      });
  }
  const int code = checks.finish();
  world.finish();
  return code;
}
