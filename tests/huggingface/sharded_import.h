// A run on the ranks of the job that starts from a Hugging Face directory, without the trainer around it.
#pragma once

#include <memory>

#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/shard/sharded_model.h"
#include "train/distribution.h"
#include "train/huggingface.h"
#include "train/planning.h"
#include "train/run.h"

namespace dmuon::test {

struct ShardedImport {
  Path directory;
  Configuration configuration;
  ModelFamily family;
  std::unique_ptr<Backend> backend;
  ModelPlan plan;
  std::unique_ptr<ShardedModel> sharded;  // its values are undefined so far

  // Matrices are updated by Muon or, like everything else, by AdamW: rules 0 and 1.
  ShardedImport(Communicator& world, const Path& from, int stage, bool with_muon)
      : directory(from),
        configuration(configuration_of(from, stage)),
        family(find_family(models(), configuration.model.family)),
        backend(make_cpu_backend({.mode = HostMode::normal, .threads = 1})),
        plan(make_model(configuration, TokenData{}, models())) {
    const Inventory& inventory = plan.model->inventory();
    AdamWOptions options;
    options.epsilon = 1e-3;
    RuleTable table;
    table.rules.push_back(make_muon(muon_options("keller")));
    table.rules.push_back(make_adamw(options));
    for (const ParameterDeclaration& parameter : inventory.parameters())
      table.rule_of.push_back(with_muon && parameter.role == ParameterRole::matrix ? 0 : 1);
    const RunGrid grid = make_run_grid(configuration.distribution, world.size(), 1);
    JobPlans plans = make_run_plans(configuration.distribution, inventory, table, grid.grid);
    sharded = std::make_unique<ShardedModel>(*backend, world, *plan.model, std::move(table), std::move(plans),
                                             sharded_options(configuration.distribution, inventory, grid.grid));
  }

  HuggingFaceLayout layout() const { return family.huggingface.layout(plan.settings); }
  const ParameterDeclaration& parameter(const HeldPiece& held) const {
    return plan.model->inventory().parameters()[static_cast<size_t>(held.piece.tensor)];
  }

 private:
  static Configuration configuration_of(const Path& from, int stage) {
    const ModelImport import_model = huggingface_import(models());
    const Json context = import_model(from.string(), "").settings.at("context_length");
    Json tree = Json::object(), model = Json::object(), training = Json::object(), distribution = Json::object();
    model.set("from", from.string());
    training.set("batch_tokens", context);
    distribution.set("stage", stage);
    tree.set("model", model);
    tree.set("training", training);
    tree.set("distribution", distribution);
    return parse_configuration(tree.dump(), "test", {}, import_model);
  }
};

}  // namespace dmuon::test
