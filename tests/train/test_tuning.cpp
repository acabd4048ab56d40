// Who measures in a job: one rank of each kind of device.
#include <mutex>

#include "comm/thread_ranks.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "train/tuning.h"

using namespace dmuon;

namespace {

// Chooses the number of threads of the backend that it was tuned on, and, as what changes bits, who chose first.
class Recorder final : public UpdateRule {
 public:
  explicit Recorder(int rank) : rank_(rank) {}
  std::string name() const override { return "recorder"; }
  Cutting cutting() const override { return Cutting::whole; }
  std::vector<StateSpecification> state() const override { return {}; }
  Json description() const override { return Json::object(); }
  double flops(const Shape&) const override { return 1.0; }
  void prepare(Backend&, Stream&, const StepValues&) override {}
  void global(Backend&, Stream&, std::span<UpdateItem>) override {}

  Json tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache*) override {
    ++tuned;
    REQUIRE(shapes.size() == 1);
    if (numerics < 0) numerics = rank_;
    placement = backend.information().threads;
    Json choice = Json::object();
    choice.set("placement", placement);
    choice.set("numerics", numerics);
    return choice;
  }
  void adopt(const Json& choice) override {
    placement = static_cast<int>(choice.at("placement").as_integer());
    numerics = static_cast<int>(choice.at("numerics").as_integer());
  }

  int tuned = 0, placement = 0, numerics = -1;

 private:
  int rank_;
};

struct Outcome {
  int tuned = 0, placement = 0, numerics = -1;
  std::string returned;
};

std::vector<Outcome> tune_on(const std::vector<int>& threads, const std::string& stored = {}) {
  std::vector<Outcome> outcomes(threads.size());
  const auto errors = testing::run_ranks(static_cast<int>(threads.size()), {}, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const auto backend = make_cpu_backend({HostMode::normal, threads[rank], 1, "auto"});
    Configuration configuration;
    configuration.tuning.enabled = true;
    configuration.tuning.cache_directory = "/dev/null/nowhere";  // nothing is kept
    configuration.optimizer.matrix.tune_numerics = !stored.empty();
    Inventory inventory;
    const int unit = inventory.add_unit("block");
    inventory.declare(unit, "weight", Shape{4, 6}, ParameterRole::matrix, initialize_zero());
    RuleTable table;
    table.rules.push_back(std::make_unique<Recorder>(world.rank()));
    table.rule_of = {0};
    const Json choices =
        tune_rules(world, *backend, {.configuration = configuration, .inventory = inventory, .table = table, .stored = stored});
    const auto& rule = static_cast<const Recorder&>(*table.rules[0]);
    outcomes[rank] = {rule.tuned, rule.placement, rule.numerics, choices.dump()};
  });
  for (const std::string& error : errors) CHECK(error.empty());
  return outcomes;
}

}  // namespace

TEST_CASE("one rank of each kind measures, the others of that kind adopt, and bits are decided by rank 0") {
  const std::vector<int> threads{2, 1, 2, 1, 3};
  const std::vector<Outcome> outcomes = tune_on(threads);
  for (size_t rank = 0; rank < threads.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(outcomes[rank].tuned == (rank == 0 || rank == 1 || rank == 4 ? 1 : 0));
    CHECK(outcomes[rank].placement == threads[rank]);
    CHECK(outcomes[rank].numerics == 0);
    CHECK(outcomes[rank].returned == outcomes[0].returned);
  }
}

TEST_CASE("equal devices are measured once; what a checkpoint brings is not measured again") {
  for (const Outcome& outcome : tune_on({1, 1, 1})) CHECK((outcome.placement == 1 && outcome.numerics == 0));
  CHECK(tune_on({1, 1, 1})[1].tuned == 0);
  for (const Outcome& outcome : tune_on({1, 2}, R"([{"placement": 7, "numerics": 5}])"))
    CHECK((outcome.tuned == 0 && outcome.placement == 7 && outcome.numerics == 5));
}
