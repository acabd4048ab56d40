// Reading, defaults, overrides, presets and the round trip of configurations.
#include "dmuon/config/configuration.h"
#include "dmuon/config/key_table.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("an empty file gives the defaults, resolved") {
  const Configuration c = parse_configuration("{}", "test");
  CHECK(c.name == "run");
  CHECK(c.output == "runs/run");
  CHECK(c.model == ModelConfiguration());
  CHECK(c.optimizer.matrix.rule == "muon");
  CHECK(c.optimizer.matrix.preset == "keller");
  CHECK(c.optimizer.auxiliary.rule == "adamw");
  CHECK(c.optimizer.matrix.schedule.total_steps == c.training.steps);
  CHECK(load_configuration("") == c);
}

TEST_CASE("values of a file reach their members") {
  const Configuration c = parse_configuration(R"({
    "name": "shake", "seed": 9007199254740993, "device": "cpu",
    "model": {"layers": 3, "heads": 7, "width": 21, "context_length": 5, "tied_head": false, "dropout": 1},
    "data": {"train": ["a.txt", "b/*.txt"], "tokenizer": "character"},
    "training": {"steps": 17, "batch_tokens": 35},
    "optimizer": {"matrix": {"rule": "sgd", "momentum": 0.5, "schedule": {"type": "cosine", "warmup_steps": 17, "total_steps": 20}},
                  "overrides": [{"match": "*.bias", "rule": "adamw", "beta1": 0.5},
                                {"match": "head", "rule": "muon", "preset": "dion"}]}})",
                                              "test", {"model.dropout=0.25"});
  CHECK(c.output == "runs/shake");
  CHECK(c.seed == 9007199254740993);  // beyond a double's integers
  CHECK(c.model.heads == 7);
  CHECK(c.model.dropout == 0.25);
  CHECK_FALSE(c.model.tied_head);
  CHECK(c.data.train == std::vector<std::string>{"a.txt", "b/*.txt"});
  CHECK(c.optimizer.matrix.momentum == 0.5);
  CHECK(c.optimizer.matrix.learning_rate == 0.1);  // sgd's default, not muon's
  CHECK(c.optimizer.matrix.schedule.total_steps == 20);
  CHECK(c.optimizer.auxiliary.schedule.total_steps == 17);
  REQUIRE(c.optimizer.overrides.size() == 2);
  CHECK(c.optimizer.overrides[0].match == "*.bias");
  CHECK(c.optimizer.overrides[0].beta1 == 0.5);
  CHECK(c.optimizer.overrides[1].coefficients == "polar_express_dion");
}

TEST_CASE("fractions of a schedule become steps of the run, and read back as those") {
  const std::string json = R"({"training": {"steps": 800}, "optimizer": {"matrix": {"schedule":
      {"type": "warmup_stable_decay", "warmup_fraction": 0.025, "decay_fraction": 0.5}}}})";
  const auto steps_of = [&](const std::vector<std::string>& overrides) {
    const Configuration c = parse_configuration(json, "test", overrides);
    CHECK(parse_configuration(to_json(c).dump(), "test") == c);
    const ScheduleConfiguration& s = c.optimizer.matrix.schedule;
    return std::vector<int64_t>{s.warmup_steps, s.decay_steps, s.total_steps};
  };
  const std::string schedule = "optimizer.matrix.schedule.";
  CHECK(steps_of({}) == std::vector<int64_t>{20, 400, 800});
  CHECK(steps_of({"training.steps=100"}) == std::vector<int64_t>{3, 50, 100});
  CHECK(steps_of({"training.steps=1"}) == std::vector<int64_t>{0, 1, 1});
  CHECK(steps_of({schedule + "total_steps=200"}) == std::vector<int64_t>{5, 100, 200});
  // Both halves round up: the second takes what is left.
  CHECK(steps_of({"training.steps=3", schedule + "warmup_fraction=0.5"}) == std::vector<int64_t>{2, 1, 3});
}

TEST_CASE("a preset fills only what is not written") {
  const auto matrix = [](const std::string& json) {
    return parse_configuration(R"({"optimizer": {"matrix": )" + json + "}}", "test").optimizer.matrix;
  };
  const RuleConfiguration keller = matrix(R"({"rule": "muon", "preset": "keller"})");
  CHECK(keller.momentum_form == "lerp");
  CHECK(keller.nesterov);
  CHECK(keller.epsilon_mode == "add");
  CHECK(keller.learning_rate == 0.02);
  const RuleConfiguration moonlight = matrix(R"({"preset": "moonlight", "weight_decay": 0, "scale": "original"})");
  CHECK(moonlight.momentum_form == "sum");
  CHECK(moonlight.weight_decay == 0.0);
  CHECK(moonlight.scale == "original");
  CHECK(moonlight.learning_rate == 0.001);
  const RuleConfiguration dion = matrix(R"({"preset": "dion"})");
  CHECK(dion.normalization_safety == 1.02);
  CHECK_FALSE(dion.nesterov);
  CHECK(matrix(R"({"preset": "emerging"})").coefficients == "you5");
  CHECK(matrix(R"({"preset": "dmuon"})").coefficients == "polar_express_105");
  CHECK(matrix(R"({"preset": "torch"})").epsilon_mode == "clamp");
  CHECK(matrix(R"({"preset": "custom"})").normalization_epsilon == 1e-15);
  for (const auto& preset : preset_names("muon")) CHECK(rule_defaults("muon", preset).preset == preset);
  CHECK_THROWS_AS(rule_defaults("muon", "killer"), ConfigError);
  CHECK_THROWS_AS(rule_defaults("adam"), ConfigError);
}

TEST_CASE("the resolved form reads back to an equal configuration for every rule and preset") {
  std::vector<std::string> matrices = {R"({"rule": "adamw"})",
                                       R"({"rule": "sgd", "momentum": 0.9, "nesterov": true})",
                                       R"({"rule": "sign_muon", "preset": "paper", "normalization": "spectral", "iterations": 1})",
                                       R"({"rule": "sign_muon", "post_polar": true})",
                                       R"({"rule": "signum", "momentum": 0, "rate_shape": "unit_gain"})",
                                       R"({"rule": "sign_adam", "beta2": 0.99, "decay": "coupled"})",
                                       R"({"rule": "lion", "rate_shape": "mup"})"};
  for (const auto& preset : preset_names("muon"))
    matrices.push_back(R"({"rule": "muon", "restarts": [1, 3], "preset": ")" + preset + "\"}");
  for (const auto& matrix : matrices) {
    const Configuration first =
        load_configuration("", {"optimizer.matrix=" + matrix,
                                R"(optimizer.overrides=[{"match": "a*", "rule": "sgd", "learning_rate": 0.3}])", "sample.prompt=\"a\\n\""});
    const Configuration second = parse_configuration(to_json(first).dump(2), "resolved");
    CHECK(first == second);
    CHECK(configuration_hash(first) == configuration_hash(second));
    CHECK(to_json(first).dump() == to_json(second).dump());
  }
}

TEST_CASE("rules with a vote: defaults, presets and the rules that have them") {
  const auto matrix = [](const std::string& rule) {
    return parse_configuration("{\"optimizer\": {\"matrix\": " + rule + "}}", "t").optimizer.matrix;
  };
  const RuleConfiguration sign_muon = matrix(R"({"rule": "sign_muon"})");
  CHECK(sign_muon.preset == "custom");
  CHECK(sign_muon.learning_rate == 1e-3);
  CHECK(sign_muon.momentum == 0.9);
  CHECK_FALSE(sign_muon.nesterov);
  CHECK(sign_muon.momentum_form == "lerp");
  CHECK(sign_muon.coefficients == "keller5");
  CHECK(sign_muon.normalization == "frobenius");
  CHECK(sign_muon.normalization_epsilon == 0.0);
  CHECK(sign_muon.weight_decay == 0.0);
  CHECK(sign_muon.decay == "decoupled");
  CHECK(sign_muon.rate_shape == "none");
  CHECK_FALSE(sign_muon.post_polar);
  CHECK(matrix(R"({"rule": "sign_muon", "preset": "paper"})").decay == "coupled");
  CHECK(matrix(R"({"rule": "sign_muon", "preset": "paper", "decay": "decoupled"})").decay == "decoupled");
  for (const char* rule : {"sign_muon", "signum", "sign_adam", "lion"}) {
    CHECK(rule_votes(rule));
    CHECK(rule_defaults(rule).learning_rate <= 1e-3);
    CHECK(rule_defaults(rule).weight_decay == 0.0);
  }
  CHECK(rule_defaults("lion").beta2 == 0.99);
  for (const char* rule : {"adamw", "sgd", "muon"}) CHECK_FALSE(rule_votes(rule));
  CHECK_THROWS_AS(rule_defaults("sign_muon", "keller"), ConfigError);
}

TEST_CASE("a run with votes is told what its settings do not do") {
  const auto notes = [](const std::string& matrix, double clip) {
    return vote_notes(load_configuration("", {"optimizer.matrix=" + matrix, text("training.gradient_clip=", clip)}));
  };
  CHECK(notes(R"({"rule": "muon"})", 1.0).empty());
  CHECK(notes(R"({"rule": "sign_muon"})", 0.0).empty());
  const auto clipped = notes(R"({"rule": "sign_muon"})", 1.0);
  REQUIRE(clipped.size() == 1);
  CHECK_THAT(clipped[0], Catch::Contains("training.gradient_clip = 1") && Catch::Contains("momentum"));
  const auto paper = notes(R"({"rule": "sign_muon", "preset": "paper", "weight_decay": 0.1, "learning_rate": 0.05})", 0.0);
  REQUIRE(paper.size() == 2);
  CHECK_THAT(paper[0], Catch::Contains("optimizer.matrix.decay = \"coupled\""));
  CHECK_THAT(paper[1], Catch::Contains("optimizer.matrix.learning_rate = 0.05"));
  CHECK(notes(R"({"rule": "sign_muon", "post_polar": true, "learning_rate": 0.05})", 0.0).empty());
}

TEST_CASE("the resolved form has every key that applies, in the order of the table") {
  const Json json = to_json(load_configuration(""));
  std::vector<std::string> sections;
  for (const auto& [name, value] : json.as_object()) sections.push_back(name);
  CHECK(sections == std::vector<std::string>{"name", "output", "seed", "device", "threads", "model", "data", "training", "optimizer",
                                             "distribution", "communication", "tuning", "evaluation", "sample", "checkpoint", "logging"});
  CHECK(json.at("optimizer").at("matrix").find("coefficients"));
  CHECK_FALSE(json.at("optimizer").at("matrix").find("beta1"));
  CHECK_FALSE(json.at("optimizer").at("auxiliary").find("preset"));
  CHECK(json.at("optimizer").at("overrides") == Json::array());
}

TEST_CASE("the hash tells configurations apart") {
  CHECK(configuration_hash(load_configuration("")) != configuration_hash(load_configuration("", {"seed=1"})));
  CHECK(configuration_hash(load_configuration("")) == configuration_hash(load_configuration("", {"seed=0"})));
}

TEST_CASE("overrides: JSON or text, later ones win, sections, list elements") {
  const std::string file = R"({"training": {"steps": 5}, "optimizer": {"overrides": [{"match": "a", "rule": "adamw"}]}})";
  const auto with = [&](const std::vector<std::string>& overrides) { return parse_configuration(file, "test", overrides); };
  CHECK(with({"training.steps=6", "training.steps=7"}).training.steps == 7);
  CHECK(with({"training={\"steps\": 8}"}).training.steps == 8);
  CHECK(with({"training.steps=1e3"}).training.steps == 1000);
  CHECK(with({"optimizer.matrix.restarts=[2.0]"}).optimizer.matrix.restarts == std::vector<int64_t>{2});
  CHECK(with({"name=123"}).name == "123");  // a text key takes the text
  CHECK(with({"name=\"quoted\""}).name == "quoted");
  CHECK(with({"sample.prompt=a=b"}).sample.prompt == "a=b");
  CHECK(with({"sample.prompt="}).sample.prompt.empty());
  CHECK(with({"data.train=corpus.txt"}).data.train == std::vector<std::string>{"corpus.txt"});
  CHECK(with({R"(data.train=["x", "y"])"}).data.train == std::vector<std::string>{"x", "y"});
  CHECK(with({"optimizer.matrix.learning_rate=1e-2"}).optimizer.matrix.learning_rate == 0.01);
  CHECK(with({"optimizer.matrix.restarts=[2]"}).optimizer.matrix.restarts == std::vector<int64_t>{2});
  CHECK(with({"optimizer.overrides.0.beta2=0.5"}).optimizer.overrides[0].beta2 == 0.5);
  CHECK(with({"optimizer.overrides=[]"}).optimizer.overrides.empty());
  CHECK(with({"model.bias=false"}).model.bias == false);
}
