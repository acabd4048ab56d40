// Design contract 13.2: given equal reduced gradients, parameters, optimizer state and the clip coefficient are bit-equal
// for every world size, grid, stage, distribution, owner map, planner, batch composition, form of publishing and number of
// threads. Every rank computes the one-rank result itself and compares what it holds and what it computes with to that.
#include <cmath>
#include <cstring>
#include <map>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/clipping.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "dmuon/shard/sharded_model.h"
#include "support/mpi_checks.h"
#include "support/test_ranks.h"

using namespace dmuon;

namespace {

// Parameters without a forward pass: long sums, prime sizes, sizes that repeat within and across units, rows and columns
// alone, one tensor that is frozen and one that is a buffer.
class ParameterModel final : public Model {
 public:
  explicit ParameterModel(int64_t long_side) {
    const auto declare = [&](int unit, const std::string& name, Shape shape, ParameterRole role, Initializer initializer,
                             int64_t heads = 1) { inventory_.declare(unit, name, shape, role, initializer, heads); };
    const auto matrix = [&](int unit, const std::string& name, int64_t rows, int64_t columns, int64_t heads = 1) {
      declare(unit, name, Shape{rows, columns}, ParameterRole::matrix, initialize_normal(0.02), heads);
    };
    const int embedding = inventory_.add_unit("embedding");
    declare(embedding, "embedding.weight", Shape{1031, 65}, ParameterRole::embedding, initialize_normal(0.02));
    const int first = inventory_.add_unit("blocks.0");
    matrix(first, "blocks.0.a", 32, long_side, 4);
    matrix(first, "blocks.0.b", 35, 50);
    matrix(first, "blocks.0.c", 50, 35, 2);
    declare(first, "blocks.0.bias", Shape{2048}, ParameterRole::vector, initialize_zero());
    declare(first, "blocks.0.frozen", Shape{77}, ParameterRole::vector, initialize_normal(1.0));
    const int second = inventory_.add_unit("blocks.1");
    matrix(second, "blocks.1.a", 32, long_side, 4);
    matrix(second, "blocks.1.b", 67, 131);
    matrix(second, "blocks.1.c", 50, 35, 2);
    matrix(second, "blocks.1.d", 1, 9);
    matrix(second, "blocks.1.e", 13, 1);
    declare(second, "blocks.1.bias", Shape{5}, ParameterRole::vector, initialize_one());
    declare(second, "blocks.1.running_mean", Shape{11}, ParameterRole::buffer, initialize_normal(1.0));
    const int third = inventory_.add_unit("blocks.2");
    matrix(third, "blocks.2.c", 50, 35);
  }
  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override { return {}; }
  Variable forward(ExecutionContext&, const Tensor&, const Tensor&, ModelCache*, bool) override { throw ShapeError("no forward pass"); }
  ModelCache make_cache(Backend&, int64_t, int64_t) const override { return {}; }

 private:
  Inventory inventory_;
};

enum class Rules { muon, muon_gram, muon_per_head, sgd };

struct Case {
  std::string name = {};
  Rules rules = Rules::muon;
  PlanStrategy strategy = PlanStrategy::greedy;
  uint64_t owner_seed = 0;  // 0: the strategy's owners
  int threads = 1;
  int window_units = 4;
  int64_t cut_elements = 512;
  int64_t long_side = 1024;
  int micro_batches = 1;
  bool announce = true;  // the number of micro-batches
  int64_t steps = 4;
  bool partial = false;  // every rank runs through some of the units only
  int not_finite = 0;    // the step in which rank 0's gradients hold a NaN
  HostMode mode = HostMode::normal;
  ShardedModelOptions options = {};
};

RuleTable make_rules(const Inventory& inventory, Rules rules) {
  RuleTable table;
  MuonOptions options = muon_options(rules == Rules::muon_gram ? "dmuon" : "keller");
  options.per_head = rules == Rules::muon_per_head;
  if (rules == Rules::sgd)
    table.rules.push_back(make_sgd({0.9, 0.0, true, 0.01}));
  else
    table.rules.push_back(make_muon(options));
  table.rules.push_back(make_adamw({0.9, 0.95, 1e-8, 0.1}));
  for (const ParameterDeclaration& parameter : inventory.parameters()) {
    const bool fixed = parameter.role == ParameterRole::buffer || parameter.name == "blocks.0.frozen";
    table.rule_of.push_back(fixed ? -1 : parameter.role == ParameterRole::matrix ? 0 : 1);
  }
  return table;
}

Plan plan_of(const Case& c, const Inventory& inventory, const RuleTable& table, int ranks) {
  std::vector<PlanTensor> tensors;
  std::vector<int> owners;
  for (size_t i = 0; i < table.rule_of.size(); ++i) {
    const ParameterDeclaration& parameter = inventory.parameters()[i];
    PlanTensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.unit = parameter.unit;
    if (const int rule = table.rule_of[i]; rule >= 0) {
      tensor.whole = table.rules[static_cast<size_t>(rule)]->cutting() == Cutting::whole && c.options.distribution != Distribution::gather;
      tensor.rule = rule;
      tensor.shape = update_shape(*table.rules[static_cast<size_t>(rule)], parameter.name, parameter.shape, parameter.heads);
      if (tensor.whole) tensor.cost = table.rules[static_cast<size_t>(rule)]->flops(tensor.shape);
    }
    tensors.push_back(tensor);
    owners.push_back(static_cast<int>(Random(c.owner_seed, RandomStream::test).below(static_cast<uint64_t>(ranks), i)));
  }
  PlanOptions options;
  options.slots = ranks;
  options.strategy = c.strategy;
  options.cut_elements = c.cut_elements;
  options.window_units = c.window_units;
  options.replicas = c.options.replicas;
  const int units = static_cast<int>(inventory.units().size());
  return c.owner_seed == 0 ? make_plan(tensors, units, options) : make_plan_with_owners(tensors, units, options, owners);
}

// Four steps with gradients that are a function of (name, element, step); in the third they are zeros (decay only).
class Job {
 public:
  Job(Communicator& world, const Case& c)
      : case_(c),
        model_(c.long_side),
        backend_(testing::make_test_backend_of(world, {.mode = c.mode, .threads = c.threads})),
        ranks_(*backend_, world) {
    RuleTable table = make_rules(model_.inventory(), c.rules);
    for (size_t i = 0; i < table.rule_of.size(); ++i)
      if (table.rule_of[i] == 0 && c.rules != Rules::sgd)
        matrices_ += c.rules == Rules::muon_per_head ? static_cast<int>(model_.inventory().parameters()[i].heads) : 1;
    Plan plan = plan_of(c, model_.inventory(), table, world.size());
    ShardedModelOptions options = c.options;
    options.one_stream = c.mode == HostMode::deferred;
    options.inject = [this](const std::string& name, int64_t first, const Tensor& gradient) { inject(name, first, gradient); };
    sharded_ = std::make_unique<ShardedModel>(*backend_, ranks_.all(), model_, std::move(table), std::move(plan), options);
    sharded_->initialize(3);
    run(world, 1, c.steps);
  }

  // Steps first .. last, then what the checks look at.
  void run(Communicator& world, int64_t first, int64_t last) {
    const Case& c = case_;
    for (step_ = first; step_ <= last; ++step_) {
      sharded_->begin_step(c.announce ? c.micro_batches : 0);
      for (int k = 0; k < c.micro_batches; ++k) {
        sharded_->begin_micro_batch();
        if (c.partial) walk(world.rank());
        sharded_->end_micro_batch();
      }
      const double extras[] = {1.5};
      const GradientReport report = sharded_->finish_gradients(extras);
      if (!report.finite) {  // nothing is updated, the job goes on
        refused_ += report.first_non_finite;
        continue;
      }
      coefficients_.push_back(clip_coefficient(report.norm, 1.0));
      if (report.sums[0] != 1.5 * world.size()) throw NumericalError("the extra value was not added over the ranks");
      const StepValues values{step_, 0.02, coefficients_.back()};
      const StepValues all[] = {values, values};
      const double calls[] = {static_cast<double>(sharded_->update(all).newton_schulz_calls)};
      // Once per matrix and step; in the baselines on every rank.
      const int copies = c.options.distribution == Distribution::owner ? 1 : world.size();
      const double sum = world.all_reduce(calls, ReduceOperation::sum)[0];
      if (sum != matrices_ * copies) throw NumericalError(text("Newton-Schulz ran ", sum, " times for ", matrices_, " matrices"));
      if (step_ == 2) sharded_->skip_forward_pass();  // an evaluation between steps
    }
    sharded_->wait_for_parameters();
    sharded_->check_replicas();
    sharded_->for_each_unit([&](int unit) {
      for (int parameter : model_.inventory().units()[static_cast<size_t>(unit)].parameters)
        values_[parameter] = read(sharded_->value(parameter));
    });
    hash_ = sharded_->parameter_hash();
  }

  ShardedModel& sharded() { return *sharded_; }
  // What a checkpoint does: fills what this rank holds from a job that holds everything, then publishes.
  void load(Job& alone) {
    std::map<int, const HeldPiece*> whole;
    for (const HeldPiece& held : alone.sharded().held()) whole[held.piece.tensor] = &held;
    const auto fill = [&](const Tensor& mine, int64_t first, const Tensor& from) {
      const std::vector<float> values = alone.read(from);
      backend_->copy_from_host(backend_->compute_stream(), values.data() + first, mine);
    };
    for (HeldPiece& held : sharded_->held()) {
      fill(held.master, held.piece.first, whole.at(held.piece.tensor)->master);
      for (size_t s = 0; s < held.state.size(); ++s) fill(held.state[s], held.piece.first, whole.at(held.piece.tensor)->state[s]);
    }
    sharded_->publish_all();
  }
  // One flipped bit in this rank's copy of a parameter.
  void spoil(int parameter) {
    std::vector<float> values = read(sharded_->value(parameter).flat(0, 1));
    values[0] = -values[0];
    backend_->copy_from_host(backend_->compute_stream(), values.data(), sharded_->value(parameter).flat(0, 1));
  }
  const std::vector<double>& coefficients() const { return coefficients_; }
  const std::vector<float>& values(int parameter) const { return values_.at(parameter); }
  uint64_t hash() const { return hash_; }
  const std::string& refused() const { return refused_; }  // parameters with gradients that were not finite
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> host(static_cast<size_t>(tensor.elements()));
    backend_->copy_to_host(backend_->compute_stream(), tensor, host.data());
    return host;
  }

 private:
  // The events of a model that leaves out every second unit, others on other ranks.
  void walk(int rank) {
    const int units = static_cast<int>(model_.inventory().units().size());
    const auto has_memory = [&](int unit, bool gradient) {
      for (int index : model_.inventory().units()[static_cast<size_t>(unit)].parameters) {
        const ParameterDeclaration& parameter = model_.inventory().parameters()[static_cast<size_t>(index)];
        const Tensor& tensor = gradient ? parameter.state->gradient->tensor : parameter.state->value;
        if (!tensor.defined() || tensor.shape() != parameter.shape) throw ShapeError(text(parameter.name, " has no memory"));
      }
    };
    for (int unit = 0; unit < units; ++unit) {
      if ((unit + rank) % 2 == 0) continue;
      sharded_->enter_forward(unit);
      has_memory(unit, false);
      sharded_->leave_forward(unit);
    }
    for (int unit = units - 1; unit >= 0; --unit) {
      if ((unit + rank) % 2 == 0) continue;
      sharded_->enter_backward(unit);
      has_memory(unit, false);
      has_memory(unit, true);
      sharded_->leave_backward(unit);
    }
  }

  void inject(const std::string& name, int64_t first, const Tensor& gradient) {
    const Random random(static_cast<uint64_t>(step_), RandomStream::test);
    std::vector<float> values(static_cast<size_t>(gradient.elements()), 0.0f);
    if (step_ != 3)
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(first) + i, hash_name(name)) - 0.5) * 0.01f;
    if (step_ == case_.not_finite && name == "blocks.0.a") values.back() = NAN;
    backend_->copy_from_host(backend_->compute_stream(), values.data(), gradient);
  }

  Case case_;
  ParameterModel model_;
  std::unique_ptr<Backend> backend_;
  testing::TestRanks ranks_;
  std::unique_ptr<ShardedModel> sharded_;
  std::vector<double> coefficients_;
  std::map<int, std::vector<float>> values_;
  uint64_t hash_ = 0;
  std::string refused_;
  int matrices_ = 0;
  int64_t step_ = 0;
};

bool equal_bits(const std::vector<float>& a, const float* b) { return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0; }

// The last `steps` clip coefficients (all of the job's), parameters, masters, states.
void compare(testing::MpiChecks& checks, Communicator& world, Job& job, Job& alone, size_t steps = 4) {
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

// Everything that may differ without changing bits.
std::vector<Case> matrix(int ranks) {
  std::vector<Case> cases;
  const auto add = [&](std::string name, auto change) {
    Case c;
    change(c);
    c.name = std::move(name);
    cases.push_back(std::move(c));
  };
  add("greedy, 2 threads", [](Case& c) { c.threads = 2; });
  add("round robin, windows of one unit", [](Case& c) {
    c.strategy = PlanStrategy::round_robin;
    c.threads = 3;
    c.window_units = 1;
  });
  add("rank 0 owns all", [](Case& c) {
    c.strategy = PlanStrategy::rank0;
    c.window_units = 100;
  });
  add("mixed-integer planner", [](Case& c) { c.strategy = PlanStrategy::milp; });
  for (uint64_t seed = 1; seed <= 3; ++seed)
    add(text("random owners ", seed), [&](Case& c) {
      c.owner_seed = seed;
      c.window_units = 2;
      c.threads = static_cast<int>(1 + seed % 2);
    });
  for (int replicas = 1; replicas <= ranks; ++replicas) {
    if (ranks % replicas != 0) continue;
    for (int stage = 1; stage <= 3; ++stage)
      add(text(replicas, " replicas, stage ", stage), [&](Case& c) {
        c.options.replicas = replicas;
        c.options.stage = stage;
      });
    add(text(replicas, " replicas, mixed stages, nothing overlaps"), [&](Case& c) {
      c.options.replicas = replicas;
      c.options.unit_stages = {3, 1, 2, 3};
      c.options.overlap = false;
      c.micro_batches = 2;
      c.owner_seed = 7;
    });
    add(text(replicas, " replicas, replicated"), [&](Case& c) {
      c.options.replicas = replicas;
      c.options.distribution = Distribution::replicated;
      c.threads = 2;
    });
    add(text(replicas, " replicas, gather"), [&](Case& c) {
      c.options.replicas = replicas;
      c.options.distribution = Distribution::gather;
      c.window_units = replicas;
    });
    add(text(replicas, " replicas, stage 3, deferred"), [&](Case& c) {
      c.options.replicas = replicas;
      c.options.stage = 3;
      c.mode = HostMode::deferred;
    });
  }
  for (int look_ahead : {0, 1, 3})
    add(text("stage 3, look-ahead ", look_ahead), [&](Case& c) {
      c.options.stage = 3;
      c.options.look_ahead = look_ahead;
    });
  for (GatherForm form : {GatherForm::all_gather, GatherForm::broadcasts, GatherForm::padded})
    add(text("form ", static_cast<int>(form)), [&](Case& c) {
      c.options.publish_form = form;
      c.options.stage = 3;
    });
  add("stage 1, three micro-batches", [](Case& c) {
    c.options.stage = 1;
    c.micro_batches = 3;
  });
  add("stage 1, micro-batches not announced", [](Case& c) {
    c.options.stage = 1;
    c.micro_batches = 2;
    c.announce = false;
  });
  add("stage 1, reduced every micro-batch", [](Case& c) {
    c.options.stage = 1;
    c.options.reduce_every_micro_batch = true;
    c.micro_batches = 2;
  });
  add("gradients travel as bfloat16", [](Case& c) {
    c.options.gradient_dtype = DType::bfloat16;
    c.micro_batches = 2;
  });
  for (int stage = 1; stage <= 3; ++stage)
    add(text("ranks that use different units, stage ", stage), [&](Case& c) {
      c.options.stage = stage;
      c.options.look_ahead = stage - 1;
      c.partial = true;
      c.micro_batches = 2;
    });
  return cases;
}

// What a device does differently, waiting and moving, in as few cases as show it.
std::vector<Case> device_matrix(int ranks) {
  std::vector<Case> cases;
  for (Case& c : matrix(ranks)) {
    const auto named = [&](std::string_view part) { return c.name.find(part) != std::string::npos; };
    const bool chosen = named("stage 1, three") || named("mixed stages") || named("form") || named("replicated") || named("gather") ||
                        named("look-ahead 3") || named("different units, stage 3") || named("bfloat16");
    if (!chosen || c.mode != HostMode::normal) continue;
    c.rules = Rules::sgd;
    cases.push_back(c);
  }
  return cases;
}

template <class Expected>
void refuses(testing::MpiChecks& checks, Communicator& world, const Case& c, const std::string& part) {
  std::string found = "nothing";
  try {
    Job job(world, c);
  } catch (const Expected& error) {
    found = error.what();
  }
  checks.check(found.find(part) != std::string::npos, text("expected \"", part, "\", found: ", found));
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  const auto self = make_self_communicator();
  const auto run = [&](std::vector<Case> cases, const Case& reference) {
    Job alone(*self, reference);
    for (const Case& c : cases)
      checks.section(c.name, [&] {
        // Replicas are virtual nodes: no memory is shared between them.
        const auto nodes = all.divide_into_nodes(c.options.replicas, "virtual nodes");
        Job job(*nodes, c);
        compare(checks, all, job, alone);
      });
  };
  if (testing::test_device_is_cuda()) {
    run(device_matrix(all.size()), {.rules = Rules::sgd});
    const int code = checks.finish();
    world.finish();
    return code;
  }
  run(matrix(all.size()), {});
  for (Rules rules : {Rules::muon_gram, Rules::muon_per_head, Rules::sgd}) {
    // Sums over many elements, as in real matrices.
    Case large{.name = "large matrices, stage 3", .rules = rules, .threads = 2, .cut_elements = 16384, .long_side = 8192};
    large.options.stage = 3;
    Case random = large;
    random.name = "large matrices, random owners";
    random.owner_seed = 5;
    std::vector<Case> cases = {large, random};
    if (rules == Rules::muon_per_head) {
      for (int stage : {1, 2, 3}) {
        Case small{.name = text("heads apart, stage ", stage), .rules = rules, .cut_elements = 16384, .long_side = 8192};
        small.options.stage = stage;
        cases.push_back(small);
      }
      for (Distribution distribution : {Distribution::gather, Distribution::replicated}) {
        Case baseline{.name = text("heads apart, ", distribution == Distribution::gather ? "gather" : "replicated"),
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
  std::vector<Case> narrow;
  for (int replicas = 1; replicas <= all.size(); ++replicas)
    for (int stage = 1; stage <= 3; ++stage) {
      if (all.size() % replicas != 0) continue;
      Case c{.name = text("values travel as bfloat16, ", replicas, " replicas, stage ", stage), .threads = 1 + stage % 2};
      c.options.compute_dtype = DType::bfloat16;
      c.options.replicas = replicas;
      c.options.stage = stage;
      if (stage == 1) c.mode = HostMode::deferred;
      narrow.push_back(c);
    }
  Case replicated{.name = "values rounded to bfloat16, replicated"};
  replicated.options.compute_dtype = DType::bfloat16;
  replicated.options.distribution = Distribution::replicated;
  narrow.push_back(replicated);
  Case reference;
  reference.options.compute_dtype = DType::bfloat16;
  run(narrow, reference);

  // A saved state of four steps goes on in a job of any other kind.
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    Case saved_case{}, later_case{.steps = 6};
    saved_case.options.compute_dtype = later_case.options.compute_dtype = dtype;
    Job saved(*self, saved_case), later(*self, later_case);
    for (Distribution distribution : {Distribution::owner, Distribution::gather, Distribution::replicated})
      for (int replicas = 1; replicas <= all.size(); ++replicas) {
        if (all.size() % replicas != 0 || (distribution == Distribution::gather && dtype != DType::float32)) continue;
        Case c{.steps = 0};
        c.options.distribution = distribution;
        c.options.replicas = replicas;
        c.options.compute_dtype = dtype;
        c.options.stage = distribution == Distribution::owner ? 3 : 2;
        checks.section(text("resumed as ", name_of(distribution), " with ", replicas, " replicas, ", name_of(dtype)), [&] {
          Job job(all, c);
          job.load(saved);
          job.run(all, 5, 6);
          compare(checks, all, job, later, 2);
        });
      }
  }
  checks.section("one rank's NaN is everybody's decision", [&] {
    Case c;
    c.options.stage = 3;
    c.not_finite = 2;
    Job job(all, c);
    checks.check(job.refused() == "blocks.0.a", text("found: ", job.refused()));
  });
  checks.section("units entered in another order than declared", [&] {
    Job job(all, {});
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
    Case c;
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
      Case c{.owner_seed = all.rank() == all.size() - 1 ? 3u : 4u};
      refuses<CommunicationError>(checks, all, c, text("rank ", all.size() - 1, " on"));
      c = {};
      c.options.look_ahead = all.rank() == 0 ? 2 : 3;
      refuses<CommunicationError>(checks, all, c, "look_ahead 3");
    });
    for (int stage : {2, 1})
      checks.section("a replica that differs is noticed and named", [&] {
        Case c{.rules = Rules::sgd};
        c.options.stage = stage;
        Job job(all, c);
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
