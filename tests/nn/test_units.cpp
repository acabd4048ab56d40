#include "nn/tiny_model.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

// Writes down the events and publishes like a sharded run: a unit's parameters exist only between its events.
class Recorder final : public UnitListener {
 public:
  explicit Recorder(Instance& instance) : instance_(instance) {
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters()) {
      values_.push_back(parameter.state->value);
      parameter.state->value = {};
      uses_.resize(instance.model->inventory().units().size(), 0);
    }
  }
  void enter_forward(int unit) override { enter("+f", unit); }
  void leave_forward(int unit) override { leave("-f", unit); }
  void enter_backward(int unit) override { enter("+b", unit); }
  void leave_backward(int unit) override {
    leave("-b", unit);
    // What this unit's gradients hold now is what would be reduced: nothing may arrive afterwards.
    Values& seen = at_leave[name(unit)];
    for (int index : instance_.model->inventory().units()[static_cast<size_t>(unit)].parameters) {
      const ParameterDeclaration& parameter = instance_.model->inventory().parameters()[static_cast<size_t>(index)];
      seen[parameter.name] = to_doubles(instance_.backend, parameter.state->gradient->tensor);
    }
  }
  std::vector<std::string> events;
  std::map<std::string, Values> at_leave;

 private:
  std::string name(int unit) const { return instance_.model->inventory().units()[static_cast<size_t>(unit)].name; }
  void enter(const char* event, int unit) {
    events.push_back(event + (" " + name(unit)));
    if (uses_[static_cast<size_t>(unit)]++ == 0) publish(unit, true);
  }
  void leave(const char* event, int unit) {
    events.push_back(event + (" " + name(unit)));
    if (--uses_[static_cast<size_t>(unit)] == 0) publish(unit, false);
  }
  void publish(int unit, bool on) {
    for (int index : instance_.model->inventory().units()[static_cast<size_t>(unit)].parameters)
      instance_.model->inventory().parameters()[static_cast<size_t>(index)].state->value =
          on ? values_[static_cast<size_t>(index)] : Tensor();
  }
  Instance& instance_;
  std::vector<Tensor> values_;
  std::vector<int> uses_;
};

// Names of the units that `event` ("+f", "+b") lists, in order.
std::vector<std::string> units_of(const std::vector<std::string>& events, const std::string& event) {
  std::vector<std::string> names;
  for (const std::string& text : events)
    if (text.substr(0, 2) == event) names.push_back(text.substr(3));
  return names;
}

std::vector<std::string> names_of(const Inventory& inventory, const std::vector<int>& units) {
  std::vector<std::string> names;
  for (int unit : units) names.push_back(inventory.units()[static_cast<size_t>(unit)].name);
  return names;
}

}  // namespace

TEST_CASE("the declared orders are those in which units are entered") {
  const auto backend = reference_backend();
  for (const bool tied : {false, true}) {
    Instance instance(*backend, with(tiny_settings(), {{"tied_head", tied}}));
    Recorder recorder(instance);
    instance.model->set_unit_listener(&recorder);
    run(instance, random_batch(1, 4, 11), true);
    CHECK(units_of(recorder.events, "+f") == names_of(instance.model->inventory(), instance.model->forward_order()));
    CHECK(units_of(recorder.events, "+b") == names_of(instance.model->inventory(), instance.model->backward_order()));
  }
}

TEST_CASE("unit events come in order, the tied unit at both uses, and parameters are needed only between them") {
  const auto backend = reference_backend();
  const Json settings = with(tiny_settings(), {{"dropout", 0.2}});
  const Batch batch = random_batch(2, 6, 11);
  Instance plain(*backend, settings);
  run(plain, batch, true);
  for (const bool recompute : {false, true}) {
    Instance instance(*backend, settings);
    Recorder recorder(instance);
    instance.model->set_unit_listener(&recorder);
    instance.model->set_recompute(recompute);
    run(instance, batch, true);
    CHECK(recorder.events == std::vector<std::string>{"+f token_embedding",
                                                      "+f embedding",
                                                      "-f embedding",
                                                      "-f token_embedding",
                                                      "+f blocks.0",
                                                      "-f blocks.0",
                                                      "+f blocks.1",
                                                      "-f blocks.1",
                                                      "+f head",
                                                      "+f token_embedding",
                                                      "-f token_embedding",
                                                      "-f head",  //
                                                      "+b head",
                                                      "+b token_embedding",
                                                      "-b token_embedding",
                                                      "-b head",
                                                      "+b blocks.1",
                                                      "-b blocks.1",
                                                      "+b blocks.0",
                                                      "-b blocks.0",
                                                      "+b token_embedding",
                                                      "+b embedding",
                                                      "-b embedding",
                                                      "-b token_embedding"});
    CHECK(instance.gradients() == plain.gradients());
    for (const auto& [unit, seen] : recorder.at_leave)
      for (const auto& [name, gradient] : seen) {
        INFO(unit << " " << name);
        CHECK(gradient == plain.gradients().at(name));
      }
    recorder.events.clear();
    run(instance, batch, false);
    CHECK(recorder.events.size() == 12);  // forward only
  }
}

TEST_CASE("an untied model has no token unit") {
  const auto backend = reference_backend();
  Instance instance(*backend, with(tiny_settings(), {{"tied_head", false}}));
  const Inventory& inventory = instance.model->inventory();
  std::vector<std::string> names;
  for (const UnitDeclaration& unit : inventory.units()) {
    names.push_back(unit.name);
    CHECK_FALSE(unit.tied);
  }
  CHECK(names == std::vector<std::string>{"embedding", "blocks.0", "blocks.1", "head"});
  CHECK(inventory.find("head.weight")->role == ParameterRole::head);
  CHECK(inventory.find("embedding.token.weight")->role == ParameterRole::embedding);
  Recorder recorder(instance);
  instance.model->set_unit_listener(&recorder);
  run(instance, random_batch(1, 4, 11), true);
  CHECK(recorder.events == std::vector<std::string>{"+f embedding", "-f embedding", "+f blocks.0", "-f blocks.0", "+f blocks.1",
                                                    "-f blocks.1", "+f head", "-f head", "+b head", "-b head", "+b blocks.1", "-b blocks.1",
                                                    "+b blocks.0", "-b blocks.0", "+b embedding", "-b embedding"});
}

TEST_CASE("GPT-2 declares logical matrices under its own names") {
  const auto model = make_model(with(tiny_settings(), {{"vocabulary_multiple", 8}}));
  const Inventory& inventory = model->inventory();
  CHECK(inventory.units()[0].tied);
  CHECK(inventory.units()[0].name == "token_embedding");
  CHECK(inventory.find("embedding.token.weight")->shape == Shape({16, 6}));
  CHECK(inventory.find("embedding.position.weight")->shape == Shape({7, 6}));
  CHECK(inventory.find("blocks.1.attention.key.weight")->shape == Shape({6, 6}));
  CHECK(inventory.find("blocks.1.mlp.up.weight")->shape == Shape({24, 6}));
  CHECK(inventory.find("blocks.1.mlp.down.weight")->shape == Shape({6, 24}));
  CHECK(inventory.find("blocks.1.mlp.down.weight")->initializer.deviation == Approx(0.3 / 2));
  CHECK(inventory.find("blocks.1.attention.output.weight")->initializer.deviation == Approx(0.3 / 2));
  CHECK(inventory.find("blocks.1.attention.query.weight")->initializer.deviation == Approx(0.3));
  int matrices = 0;
  for (const ParameterDeclaration& parameter : inventory.parameters()) matrices += parameter.role == ParameterRole::matrix;
  CHECK(matrices == 2 * 6);
  CHECK(inventory.find("head.weight") == nullptr);
  CHECK(model->facts().vocabulary_size == 11);
  CHECK(model->facts().gemm_parameters == 2 * 12 * 36 + 16 * 6);
}
