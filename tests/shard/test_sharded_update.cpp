// Design contract 13.2: given equal reduced gradients, parameters, optimizer state and the clip coefficient are bit-equal
// for every world size, owner map, planner, batch composition and number of threads. Every rank computes the one-rank
// result itself and compares what it holds with it.
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

using namespace dmuon;

namespace {

// Parameters without a forward pass.
class ParameterModel final : public Model {
 public:
  ParameterModel() {
    const auto matrix = [&](int unit, const std::string& name, int64_t rows, int64_t columns) {
      inventory_.declare(unit, name, Shape{rows, columns}, ParameterRole::matrix, initialize_normal(0.02));
    };
    const int embedding = inventory_.add_unit("embedding");
    inventory_.declare(embedding, "embedding.weight", Shape{1031, 65}, ParameterRole::embedding, initialize_normal(0.02));
    // Long sums, odd sizes, sizes that repeat within and across units, one that is alone.
    const int first = inventory_.add_unit("blocks.0");
    matrix(first, "blocks.0.a", 128, 2048);
    matrix(first, "blocks.0.b", 35, 50);
    matrix(first, "blocks.0.c", 50, 35);
    inventory_.declare(first, "blocks.0.bias", Shape{2048}, ParameterRole::vector, initialize_zero());
    const int second = inventory_.add_unit("blocks.1");
    matrix(second, "blocks.1.a", 128, 2048);
    matrix(second, "blocks.1.b", 256, 8192);
    matrix(second, "blocks.1.c", 50, 35);
    matrix(second, "blocks.1.d", 1, 9);
    inventory_.declare(second, "blocks.1.bias", Shape{5}, ParameterRole::vector, initialize_one());
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

enum class Rules { muon, muon_gram, sgd };

RuleTable make_rules(const Inventory& inventory, Rules rules) {
  RuleTable table;
  if (rules == Rules::sgd)
    table.rules.push_back(make_sgd({0.9, 0.0, true, 0.01}));
  else
    table.rules.push_back(make_muon(muon_options(rules == Rules::muon ? "keller" : "dmuon")));
  table.rules.push_back(make_adamw({0.9, 0.95, 1e-8, 0.1}));
  for (const ParameterDeclaration& parameter : inventory.parameters())
    table.rule_of.push_back(parameter.role == ParameterRole::matrix ? 0 : 1);
  return table;
}

struct Case {
  Rules rules = Rules::muon;
  PlanStrategy strategy = PlanStrategy::greedy;
  uint64_t owner_seed = 0;  // 0: the strategy's owners
  int threads = 1;
  int window_units = 4;
};

// Three steps with gradients that are a function of (name, element, step), and one with zeros (decay only).
class Job {
 public:
  Job(Communicator& world, const Case& c) : backend_(make_cpu_backend({.threads = c.threads})) {
    RuleTable table = make_rules(model_.inventory(), c.rules);
    std::vector<PlanTensor> tensors;
    for (size_t i = 0; i < table.rule_of.size(); ++i) {
      const ParameterDeclaration& parameter = model_.inventory().parameters()[i];
      const UpdateRule& rule = *table.rules[static_cast<size_t>(table.rule_of[i])];
      const bool whole = rule.cutting() == Cutting::whole;
      tensors.push_back({parameter.name, parameter.shape, parameter.unit, whole, whole ? rule.flops(parameter.shape) : 0.0});
    }
    const PlanOptions options{.slots = world.size(), .strategy = c.strategy};
    const int units = static_cast<int>(model_.inventory().units().size());
    Plan plan = make_plan(tensors, units, options);
    if (c.owner_seed != 0) {
      std::vector<int> owners;
      for (size_t i = 0; i < tensors.size(); ++i)
        owners.push_back(static_cast<int>(Random(c.owner_seed, RandomStream::test).below(static_cast<uint64_t>(world.size()), i)));
      plan = make_plan_with_owners(tensors, units, options, owners);
    }
    ShardedModelOptions shard_options;
    shard_options.window_units = c.window_units;
    shard_options.inject = [this](const std::string& name, int64_t first, const Tensor& gradient) { inject(name, first, gradient); };
    sharded_ = std::make_unique<ShardedModel>(*backend_, world, model_, std::move(table), std::move(plan), shard_options);
    sharded_->initialize(3);
    for (step_ = 1; step_ <= 4; ++step_) {
      sharded_->begin_step();
      sharded_->begin_micro_batch();
      sharded_->end_micro_batch();
      const double extras[] = {1.5};
      const GradientReport report = sharded_->finish_gradients(extras);
      coefficients_.push_back(clip_coefficient(report.norm, 1.0));
      if (report.sums[0] != 1.5 * world.size()) throw NumericalError("the extra value was not added over the ranks");
      const StepValues values{step_, 0.02, coefficients_.back()};
      const StepValues all[] = {values, values};
      sharded_->update(all);
    }
    sharded_->wait_for_parameters();
    sharded_->check_replicas();
  }

  ShardedModel& sharded() { return *sharded_; }
  // One flipped bit in this rank's copy of a parameter.
  void spoil(int parameter) {
    std::vector<float> values = read(sharded_->value(parameter).flat(0, 1));
    values[0] = -values[0];
    backend_->copy_from_host(backend_->compute_stream(), values.data(), sharded_->value(parameter).flat(0, 1));
  }
  const std::vector<double>& coefficients() const { return coefficients_; }
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> host(static_cast<size_t>(tensor.elements()));
    backend_->copy_to_host(backend_->compute_stream(), tensor, host.data());
    return host;
  }

 private:
  void inject(const std::string& name, int64_t first, const Tensor& gradient) {
    const Random random(static_cast<uint64_t>(step_), RandomStream::test);
    std::vector<float> values(static_cast<size_t>(gradient.elements()), 0.0f);
    if (step_ != 3)
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(first) + i, hash_name(name)) - 0.5) * 0.01f;
    backend_->copy_from_host(backend_->compute_stream(), values.data(), gradient);
  }

  ParameterModel model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ShardedModel> sharded_;
  std::vector<double> coefficients_;
  int64_t step_ = 0;
};

bool equal_bits(const std::vector<float>& a, const float* b) { return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0; }

void compare(testing::MpiChecks& checks, Job& job, Job& alone, const std::string& what) {
  checks.check(job.coefficients() == alone.coefficients(), text(what, ": clip coefficients differ"));
  std::map<int, const HeldPiece*> whole;
  for (const HeldPiece& held : alone.sharded().held()) whole[held.piece.tensor] = &held;
  const auto& parameters = job.sharded().inventory().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<float> expected = alone.read(alone.sharded().value(static_cast<int>(i)));
    checks.check(equal_bits(job.read(job.sharded().value(static_cast<int>(i))), expected.data()),
                 text(what, ": ", parameters[i].name, " differs"));
  }
  for (const HeldPiece& held : job.sharded().held()) {
    const HeldPiece& reference = *whole.at(held.piece.tensor);
    for (size_t s = 0; s < held.state.size(); ++s) {
      const std::vector<float> expected = alone.read(reference.state[s]);
      checks.check(equal_bits(job.read(held.state[s]), expected.data() + held.piece.first),
                   text(what, ": state ", s, " of ", parameters[static_cast<size_t>(held.piece.tensor)].name, " differs"));
    }
  }
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  const auto self = make_self_communicator();
  for (Rules rules : {Rules::muon, Rules::muon_gram, Rules::sgd}) {
    Job alone(*self, {.rules = rules});
    std::vector<std::pair<std::string, Case>> cases;
    cases.push_back({"greedy, 2 threads", {.rules = rules, .threads = 2}});
    if (rules != Rules::sgd) {
      cases.push_back({"round robin, 3 threads, windows of one unit",
                       {.rules = rules, .strategy = PlanStrategy::round_robin, .threads = 3, .window_units = 1}});
      cases.push_back({"rank 0 owns all", {.rules = rules, .strategy = PlanStrategy::rank0, .threads = 1, .window_units = 100}});
      for (uint64_t seed = 1; seed <= 3; ++seed)
        cases.push_back({text("random owners ", seed),
                         {.rules = rules, .owner_seed = seed, .threads = static_cast<int>(1 + seed % 2), .window_units = 2}});
    }
    for (const auto& [name, c] : cases)
      checks.section(name, [&] {
        Job job(all, c);
        compare(checks, job, alone, name);
      });
  }
  if (all.size() > 1)
    checks.section("a replica that differs is noticed and named", [&] {
      Job job(all, {.rules = Rules::sgd});
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
  const int code = checks.finish();
  world.finish();
  return code;
}
