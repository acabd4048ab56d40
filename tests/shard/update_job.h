// A model of parameters only, and a job that updates it by gradients which every rank can compute.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/clipping.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "dmuon/shard/sharded_model.h"
#include "support/test_ranks.h"

namespace dmuon::testing {

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

struct UpdateCase {
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

inline RuleTable make_update_rules(const Inventory& inventory, Rules rules) {
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

inline Plan plan_of(const UpdateCase& c, const Inventory& inventory, const RuleTable& table, int ranks) {
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
class UpdateJob {
 public:
  UpdateJob(Communicator& world, const UpdateCase& c)
      : case_(c),
        model_(c.long_side),
        backend_(make_test_backend_of(world, {.mode = c.mode, .threads = c.threads})),
        ranks_(*backend_, world) {
    RuleTable table = make_update_rules(model_.inventory(), c.rules);
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
    const UpdateCase& c = case_;
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
  void load(UpdateJob& alone) {
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

  UpdateCase case_;
  ParameterModel model_;
  std::unique_ptr<Backend> backend_;
  TestRanks ranks_;
  std::unique_ptr<ShardedModel> sharded_;
  std::vector<double> coefficients_;
  std::map<int, std::vector<float>> values_;
  uint64_t hash_ = 0;
  std::string refused_;
  int matrices_ = 0;
  int64_t step_ = 0;
};

}  // namespace dmuon::testing
