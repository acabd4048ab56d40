// A job whose ranks agree by vote on some tensors, with gradients that the test injects: every worker has its own.
#pragma once

#include <cstring>
#include <map>

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/clipping.h"
#include "dmuon/optim/lion.h"
#include "dmuon/optim/sign_adam.h"
#include "dmuon/optim/sign_muon.h"
#include "dmuon/optim/signum.h"
#include "dmuon/shard/sharded_model.h"
#include "shard/vote_simulation.h"
#include "support/test_ranks.h"

namespace dmuon::testing {

// Parameters without a forward pass: small matrices, rows and columns alone, sizes that fill words and sizes that do not.
class VoteModel final : public Model {
 public:
  explicit VoteModel(bool sizes_of_words = false) {
    const auto declare = [&](int unit, const std::string& name, Shape shape, ParameterRole role, int64_t heads = 1) {
      inventory_.declare(unit, name, shape, role, initialize_normal(0.02), heads);
    };
    if (sizes_of_words) {
      // Pieces around the sizes of words and of vectors of instructions, one longer than a chunk, and an empty one.
      const int lines = inventory_.add_unit("lines");
      for (int64_t size : {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 4097})
        declare(lines, text("lines.", size), Shape{size}, ParameterRole::vector);
      const int boxes = inventory_.add_unit("boxes");
      for (int64_t rows : {1, 3, 65})
        for (int64_t columns : {1, 31, 64, 65})
          declare(boxes, text("boxes.", rows, "x", columns), Shape{rows, columns}, ParameterRole::matrix);
      return;
    }
    const int embedding = inventory_.add_unit("embedding");
    declare(embedding, "embedding.weight", Shape{37, 12}, ParameterRole::embedding);
    const int first = inventory_.add_unit("blocks.0");
    declare(first, "blocks.0.a", Shape{12, 20}, ParameterRole::matrix, 3);
    declare(first, "blocks.0.b", Shape{20, 12}, ParameterRole::matrix, 2);
    declare(first, "blocks.0.c", Shape{7, 33}, ParameterRole::matrix);
    declare(first, "blocks.0.bias", Shape{70}, ParameterRole::vector);
    declare(first, "blocks.0.running_mean", Shape{11}, ParameterRole::buffer);
    const int second = inventory_.add_unit("blocks.1");
    declare(second, "blocks.1.a", Shape{12, 20}, ParameterRole::matrix, 3);
    declare(second, "blocks.1.d", Shape{1, 9}, ParameterRole::matrix);
    declare(second, "blocks.1.bias", Shape{5}, ParameterRole::vector);
    const int third = inventory_.add_unit("blocks.2");
    declare(third, "blocks.2.c", Shape{7, 33}, ParameterRole::matrix);
    const int head = inventory_.add_unit("head");
    declare(head, "head.weight", Shape{40, 33}, ParameterRole::head);
  }
  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override { return {}; }
  Variable forward(ExecutionContext&, const Tensor&, const Tensor&, ModelCache*, bool) override { throw ShapeError("no forward pass"); }
  ModelCache make_cache(Backend&, int64_t, int64_t) const override { return {}; }

 private:
  Inventory inventory_;
};

struct VoteCase {
  std::string name = {};
  Kind matrices = Kind::sign_muon, others = Kind::mean;  // mean: AdamW
  bool post_polar = false;
  bool per_head = false;  // of Sign-Muon
  double momentum = 0.9;  // of the rules that vote
  MomentumForm momentum_form = MomentumForm::lerp;
  double clip = 0.5;
  double gradient_scale = 1.0;  // on top of the clip coefficient
  double spike = 0.0;           // the gradient of one element of blocks.0.b on the last worker in step 2, if not 0
  int64_t steps = 4;
  int threads = 1;
  int nodes = 0;  // virtual ones; 0: a replica each
  int window_units = 2;
  PlanStrategy strategy = PlanStrategy::greedy;
  HostMode mode = HostMode::normal;
  bool observe = false;
  bool sizes_of_words = false;  // another model: tensors of such sizes
  ShardedModelOptions options = ballots_of_windows();

  // Several ballots, however small the model.
  static ShardedModelOptions ballots_of_windows() {
    ShardedModelOptions options;
    options.vote_ballot_bytes = 0;
    return options;
  }
};

inline constexpr int64_t vote_cut_elements = 128;
inline constexpr uint64_t vote_seed = 77;

// Rows that no worker uses, and rows that the first does not use. The workers' data are very different.
inline float vote_gradient(const std::string& name, int64_t element, int64_t step, int worker, int64_t columns) {
  const int64_t row = element / columns;
  const bool sparse = name == "embedding.weight" || name == "head.weight" || name == "blocks.0.c";
  if (sparse && (row % 5 == 2 || (worker == 0 && row % 5 == 3))) return 0.0f;
  const Random random(static_cast<uint64_t>(32001 + step * 64 + worker), RandomStream::test);
  const double size = worker < 0 ? 0.01 : 0.01 * (1 + 5 * worker);
  return static_cast<float>((random.uniform(static_cast<uint64_t>(element), hash_name(name)) - 0.5) * size);
}

inline std::unique_ptr<UpdateRule> make_vote_rule(Kind kind, const VoteCase& c) {
  VoteOptions shared;
  shared.weight_decay = 0.1;
  switch (kind) {
    case Kind::sign_muon: {
      SignMuonOptions options;
      static_cast<VoteOptions&>(options) = shared;
      options.momentum = c.momentum;
      options.momentum_form = c.momentum_form;
      options.post_polar = c.post_polar;
      options.per_head = c.per_head;
      return make_sign_muon(options);
    }
    case Kind::signum: {
      SignumOptions options;
      static_cast<VoteOptions&>(options) = shared;
      options.momentum = c.momentum;
      options.momentum_form = c.momentum_form;
      return make_signum(options);
    }
    case Kind::sign_adam: {
      SignAdamOptions options;
      static_cast<VoteOptions&>(options) = shared;
      return make_sign_adam(options);
    }
    case Kind::lion: {
      LionOptions options;
      static_cast<VoteOptions&>(options) = shared;
      return make_lion(options);
    }
    case Kind::mean:
      return make_adamw({0.9, 0.95, 1e-8, 0.1});
  }
  return nullptr;
}

inline RuleTable make_vote_rules(const Inventory& inventory, const VoteCase& c) {
  RuleTable table;
  table.rules.push_back(make_vote_rule(c.matrices, c));
  table.rules.push_back(make_vote_rule(c.others, c));
  for (const ParameterDeclaration& parameter : inventory.parameters())
    table.rule_of.push_back(parameter.role == ParameterRole::buffer ? -1 : parameter.role == ParameterRole::matrix ? 0 : 1);
  return table;
}

// The two plans of a job.
inline JobPlans make_vote_plans(const Inventory& inventory, const RuleTable& table, const VoteCase& c, int ranks,
                                int64_t cut_elements = vote_cut_elements) {
  std::vector<PlanTensor> mean, vote;
  bool votes = false;
  for (size_t i = 0; i < table.rule_of.size(); ++i) {
    const ParameterDeclaration& parameter = inventory.parameters()[i];
    PlanTensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.unit = parameter.unit;
    bool voted = false;
    if (const int rule = table.rule_of[i]; rule >= 0) {
      const UpdateRule& update = *table.rules[static_cast<size_t>(rule)];
      tensor.shape = update_shape(update, parameter.name, parameter.shape, parameter.heads);
      tensor.whole = update.cutting() == Cutting::whole;
      tensor.rule = rule;
      if (tensor.whole) tensor.cost = update.flops(tensor.shape);
      voted = update.agreement() == Agreement::vote;
    }
    votes |= voted;
    mean.push_back(tensor);
    vote.push_back(tensor);
    (voted ? mean : vote).back().unit = -1;
  }
  PlanOptions options;
  options.slots = ranks;
  options.replicas = c.options.replicas;
  options.strategy = c.strategy;
  options.cut_elements = cut_elements;
  options.window_units = c.window_units;
  const int units = static_cast<int>(inventory.units().size());
  Plan of_means = make_plan(mean, units, options);
  options.slots = ranks / c.options.replicas;
  options.replicas = 1;
  return votes ? JobPlans(std::move(of_means), make_plan(vote, units, options)) : JobPlans(std::move(of_means));
}

class VoteJob {
 public:
  VoteJob(Communicator& world, const VoteCase& c)
      : case_(c),
        model_(c.sizes_of_words),
        backend_(make_test_backend_of(world, {.mode = c.mode, .threads = c.threads})),
        ranks_(*backend_, world),
        workers_(c.options.replicas) {
    worker_ = world.rank() / (world.size() / workers_);
    RuleTable table = make_vote_rules(model_.inventory(), c);
    JobPlans plans = make_vote_plans(model_.inventory(), table, c, world.size());
    ShardedModelOptions options = c.options;
    options.vote_seed = vote_seed;
    options.one_stream = c.mode == HostMode::deferred;
    options.inject = [this](const std::string& name, int64_t first, const Tensor& gradient) { inject(name, first, gradient); };
    sharded_ = std::make_unique<ShardedModel>(*backend_, ranks_.all(), model_, std::move(table), std::move(plans), options);
    sharded_->initialize(3);
    gather();
    initial_ = values_;
  }

  void run() {
    for (int64_t step = 1; step <= case_.steps; ++step) run_step(step);
    finish();
  }
  void run_step(int64_t number) {
    step_ = number;
    sharded_->begin_step(1);
    sharded_->begin_micro_batch();
    sharded_->end_micro_batch();
    const GradientReport report = sharded_->finish_gradients({});
    norms_.push_back(report.norm);
    StepValues values{number, 0.02, case_.gradient_scale};
    if (case_.clip > 0.0) values.gradient_scale *= clip_coefficient(report.norm, case_.clip);
    const StepValues all[] = {values, values};
    newton_schulz_calls_ += sharded_->update(all, case_.observe).newton_schulz_calls;
  }
  void finish() {
    sharded_->wait_for_parameters();
    sharded_->check_replicas();
    gather();
  }

  ShardedModel& sharded() { return *sharded_; }
  Backend& backend() { return *backend_; }
  const std::vector<float>& values(const std::string& name) const { return values_.at(name); }
  const std::vector<double>& norms() const { return norms_; }
  int64_t newton_schulz_calls() const { return newton_schulz_calls_; }
  uint64_t hash() { return sharded_->parameter_hash(); }
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> host(static_cast<size_t>(tensor.elements()));
    backend_->copy_to_host(backend_->compute_stream(), tensor, host.data());
    return host;
  }

  // The plain simulation of the same steps: "" or the first difference.
  std::string compare_with_simulation() {
    VoteSimulation simulation(
        simulated(), {workers_, vote_cut_elements, vote_seed, 0.02, 0.1, case_.clip},
        [this](const std::string& name, int64_t element, int64_t step, int worker) { return gradient(name, element, step, worker); });
    for (const auto& [name, values] : initial_) simulation.start(name, values);
    for (int64_t step = 1; step <= case_.steps; ++step) simulation.step(step);
    if (simulation.margin() < 1e-5) return text("the inputs bring a message as small as ", simulation.margin(), ": choose others");
    for (size_t i = 0; i < norms_.size(); ++i)
      if (std::abs(norms_[i] - simulation.norms()[i]) > 1e-9 * norms_[i])
        return text("norm ", norms_[i], " in step ", i + 1, ", expected ", simulation.norms()[i]);
    for (const SimulatedTensor& tensor : simulated()) {
      if (tensor.kind == Kind::mean) continue;
      for (size_t i = 0; i < values(tensor.name).size(); ++i) {
        const double expected = simulation.values(tensor.name)[i], found = values(tensor.name)[i];
        if (!(std::abs(found - expected) < 1e-6)) return text(tensor.name, "[", i, "] is ", found, ", expected ", expected);
      }
    }
    return "";
  }

 private:
  std::vector<SimulatedTensor> simulated() const {
    std::vector<SimulatedTensor> tensors;
    for (const ParameterDeclaration& parameter : model_.inventory().parameters()) {
      if (parameter.role == ParameterRole::buffer) continue;
      const int64_t rows = parameter.shape.rank() > 1 ? parameter.shape[0] : 1;
      tensors.push_back({parameter.name, rows, parameter.shape.elements() / rows,
                         parameter.role == ParameterRole::matrix ? case_.matrices : case_.others,
                         case_.post_polar && parameter.role == ParameterRole::matrix, case_.per_head ? parameter.heads : 1});
    }
    return tensors;
  }
  float gradient(const std::string& name, int64_t element, int64_t step, int worker) const {
    for (const ParameterDeclaration& parameter : model_.inventory().parameters())
      if (parameter.name == name) {
        if (case_.spike != 0.0 && name == "blocks.0.b" && element == 17 && step == 2 && worker == workers_ - 1)
          return static_cast<float>(case_.spike);
        const int64_t rows = parameter.shape.rank() > 1 ? parameter.shape[0] : 1;
        return vote_gradient(name, element, step, worker, parameter.shape.elements() / rows);
      }
    return 0.0f;
  }
  void inject(const std::string& name, int64_t first, const Tensor& gradient_of) {
    const bool voted = [&] {
      for (const HeldPiece& held : sharded_->held())
        if (sharded_->inventory().parameters()[static_cast<size_t>(held.piece.tensor)].name == name) return held.vote;
      return false;
    }();
    std::vector<float> values;
    for (int64_t i = 0; i < gradient_of.elements(); ++i) values.push_back(gradient(name, first + i, step_, voted ? worker_ : -1));
    backend_->copy_from_host(backend_->compute_stream(), values.data(), gradient_of);
  }
  void gather() {
    sharded_->for_each_unit([&](int unit) {
      for (int parameter : model_.inventory().units()[static_cast<size_t>(unit)].parameters)
        values_[model_.inventory().parameters()[static_cast<size_t>(parameter)].name] = read(sharded_->value(parameter));
    });
  }

  VoteCase case_;
  VoteModel model_;
  std::unique_ptr<Backend> backend_;
  TestRanks ranks_;
  std::unique_ptr<ShardedModel> sharded_;
  std::map<std::string, std::vector<float>> values_, initial_;
  std::vector<double> norms_;
  int workers_ = 1, worker_ = 0;
  int64_t newton_schulz_calls_ = 0;
  int64_t step_ = 0;
};

}  // namespace dmuon::testing
