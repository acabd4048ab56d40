// Updates that agree by vote, on 1 to 8 ranks: every grid, transport, stage and order of work leaves the same bits, and they
// are those of a plain simulation of the workers in one process.
#include "dmuon/comm/world.h"
#include "shard/vote_job.h"
#include "support/mpi_checks.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

std::vector<VoteCase> rule_sets(int ranks) {
  if (ranks > 4) return {{.name = "Sign-Muon beside Signum", .others = Kind::signum, .steps = 2}};  // more ranks than processors
  return {{.name = "Sign-Muon beside AdamW"},
          {.name = "Signum everywhere", .matrices = Kind::signum, .others = Kind::signum, .clip = 0.0},
          {.name = "Sign-Muon beside Signum", .others = Kind::signum},
          {.name = "SignAdam everywhere", .matrices = Kind::sign_adam, .others = Kind::sign_adam},
          {.name = "Lion beside AdamW", .matrices = Kind::lion},
          {.name = "Sign-Muon per head", .per_head = true, .steps = 2},
          {.name = "Sign-Muon with orthogonal votes", .others = Kind::signum, .post_polar = true},
          {.name = "Signum on sizes around words", .matrices = Kind::signum, .others = Kind::signum, .steps = 2, .sizes_of_words = true}};
}

// Everything that may differ for given workers without changing bits.
std::vector<VoteCase> variants(const VoteCase& base, int ranks) {
  std::vector<VoteCase> cases;
  const auto add = [&](const std::string& name, auto change) {
    VoteCase c = base;
    change(c);
    c.name = text(base.name, ", ", c.options.replicas, " workers, ", name);
    cases.push_back(c);
  };
  const bool shards = ranks > base.options.replicas;
  add("as it is", [](VoteCase&) {});
  add("int8 sums, no overlap", [](VoteCase& c) {
    c.options.vote_transport = VoteTransportKind::int8_sum;
    c.options.overlap = false;
  });
  add("packed gather, stage 1, windows of one unit", [](VoteCase& c) {
    c.options.vote_transport = VoteTransportKind::packed_gather;
    c.options.stage = 1;
    c.window_units = 1;
    c.threads = 2;
  });
  add("packed scatter, one window, round robin", [](VoteCase& c) {
    c.options.vote_transport = VoteTransportKind::packed_scatter;
    c.window_units = 100;
    c.strategy = PlanStrategy::round_robin;
  });
  if (base.options.replicas > 1)
    add("exact counts between nodes", [&](VoteCase& c) {
      c.options.vote_transport = VoteTransportKind::hierarchical;
      if (c.options.replicas > 2 && c.options.replicas % 2 == 0) c.nodes = 2;
    });
  if (ranks > 4) return cases;
  add("one shard has everything", [](VoteCase& c) { c.strategy = PlanStrategy::rank0; });
  add("deferred work", [](VoteCase& c) { c.mode = HostMode::deferred; });
  if (shards)
    add("stage 3", [](VoteCase& c) {
      c.options.stage = 3;
      c.options.look_ahead = 1;
    });
  return cases;
}

// On devices: every transport and stage with the rule that needs no orthogonalisation, the paths of the others where they differ.
std::vector<VoteCase> on_devices(const VoteCase& base, int ranks) {
  std::vector<VoteCase> cases;
  for (VoteCase& c : variants(base, ranks)) {
    const bool chosen = base.matrices == Kind::signum || c.name.ends_with("as it is") ||
                        (base.matrices == Kind::sign_muon && !base.per_head &&
                         (c.name.ends_with("stage 3") || c.name.find("packed scatter") != std::string::npos));
    if (chosen && c.mode == HostMode::normal) cases.push_back(c);
  }
  return cases;
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  MpiChecks checks(all);
  const bool devices = test_device_is_cuda();
  for (VoteCase base : rule_sets(all.size()))
    for (int replicas = 1; replicas <= all.size(); ++replicas) {
      if (all.size() % replicas != 0) continue;
      base.options.replicas = replicas;
      // On devices the rules that take another path.
      if (devices && (base.sizes_of_words || base.post_polar || (base.others == Kind::signum && base.matrices == Kind::sign_muon)))
        continue;
      uint64_t expected = 0;
      for (const VoteCase& c : devices ? on_devices(base, all.size()) : variants(base, all.size())) {
        checks.section(c.name, [&] {
          // No memory is shared between virtual nodes.
          const auto nodes = all.divide_into_nodes(c.nodes > 0 ? c.nodes : c.options.replicas, "virtual nodes");
          VoteJob job(*nodes, c);
          job.run();
          if (expected == 0) expected = job.hash();
          checks.check(job.hash() == expected, "parameters differ");
          const std::string difference = job.compare_with_simulation();
          checks.check(difference.empty(), difference);
        });
      }
    }
  const int code = checks.finish();
  world.finish();
  return code;
}
