// Every bad input gets ConfigError, and the message names path, value, what is allowed and the nearest key.
#include "dmuon/config/configuration.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support/catch.h"

using namespace dmuon;
using Catch::Matchers::Contains;

namespace {

std::string error_of(const std::string& json, const std::vector<std::string>& overrides = {}) {
  try {
    parse_configuration(json, "run.json", overrides);
  } catch (const ConfigError& error) {
    CHECK(error.exit_code() == ExitCode::bad_input);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("keys of one model family are refused by name in a run of another") {
  CHECK_THAT(error_of(R"({"model": {"family": "qwen", "dropout": 0.1}})"),
             Contains("model.dropout = 0.1: family \"qwen\" (model.family) has no such key; it belongs to gpt2"));
  CHECK_THAT(error_of(R"({"model": {"family": "qwen", "bias": false, "activation": "relu_squared", "normalization": "rms_norm"}})"),
             Contains("model.bias") && Contains("model.activation") && Contains("model.normalization") && Contains("3 errors"));
  CHECK_THAT(error_of(R"({"model": {"key_value_heads": 3}})"), Contains("model.key_value_heads = 3: family \"gpt2\""));
  CHECK_THAT(error_of(R"({"model": {"family": "qwen", "key_value_heads": 4}})"), Contains("does not divide model.heads = 6"));
  CHECK_THAT(error_of(R"({"model": {"family": "qwen", "head_width": 7}})"), Contains("model.head_width = 7") && Contains("even"));
  CHECK_THAT(error_of(R"({"model": {"family": "qwen", "heads": 5}})"),
             Contains("not a multiple of model.heads = 5") && Contains("model.head_width"));
  CHECK(error_of(R"({"model": {"family": "qwen", "heads": 5, "head_width": 64}})") == "no error");
  // What a family lacks is not printed, either.
  const Json qwen = to_json(parse_configuration(R"({"model": {"family": "qwen"}})", "run.json")).at("model");
  CHECK(qwen.find("dropout") == nullptr);
  CHECK(qwen.find("rotary_base") != nullptr);
  CHECK(to_json(Configuration()).at("model").find("rotary_base") == nullptr);
}

TEST_CASE("unknown keys suggest the nearest valid one") {
  CHECK_THAT(error_of(R"({"model": {"layres": 3}})"),
             Contains("run.json") && Contains("model.layres: unknown key; did you mean \"model.layers\"?"));
  CHECK_THAT(error_of(R"({"trainig": {}})"), Contains("trainig: unknown key; did you mean \"training\"?"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"schedule": {"warmup": 3}}}})"),
             Contains("optimizer.matrix.schedule.warmup: unknown key") && Contains("warmup_steps"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"learning_rat": 3}}})"), Contains("did you mean \"optimizer.matrix.learning_rate\"?"));
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": [{"match": "a", "rule": "sgd", "nestrov": true}]}})"),
             Contains("optimizer.overrides.0.nestrov") && Contains("\"optimizer.overrides.0.nesterov\""));
  SECTION("a key of another section is found by its name") {
    CHECK_THAT(error_of(R"({"context_length": 3})"), Contains("did you mean \"model.context_length\"?"));
    CHECK_THAT(error_of(R"({"learning_rate": 3})"), Contains("did you mean \"optimizer.matrix.learning_rate\"?"));
  }
  SECTION("nothing near: the valid keys are listed") {
    CHECK_THAT(error_of(R"({"sample": {"qqqqqqqqqq": 3}})"), Contains("valid here: interval, prompt"));
  }
  SECTION("dots inside a key are no path") { CHECK_THAT(error_of(R"({"model.layers": 3})"), Contains("model.layers: unknown key")); }
}

TEST_CASE("wrong types name what was expected and found") {
  CHECK_THAT(error_of(R"({"model": {"layers": "3"}})"),
             Contains("model.layers = \"3\": expected an integer from 1") && Contains("found string"));
  CHECK_THAT(error_of(R"({"model": {"layers": 3.5}})"), Contains("model.layers = 3.5: expected an integer from 1"));
  CHECK_THAT(error_of(R"({"seed": 1e300})"), Contains("seed = 1e+300: expected an integer"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"restarts": [1.5]}}})"), Contains("found 1.5"));
  CHECK_THAT(error_of(R"({"model": {"bias": 1}})"), Contains("model.bias = 1: expected true or false, found integer"));
  CHECK_THAT(error_of(R"({"model": {"dropout": null}})"), Contains("model.dropout = null") && Contains("found null"));
  CHECK_THAT(error_of(R"({"model": 3})"), Contains("model = 3: expected an object, found integer"));
  CHECK_THAT(error_of(R"({"name": ["a"]})"), Contains("name = [\"a\"]: expected a string, found array"));
  CHECK_THAT(error_of(R"({"data": {"train": "a.txt"}})"), Contains("data.train = \"a.txt\": expected a list of strings"));
  CHECK_THAT(error_of(R"({"data": {"train": [1]}})"), Contains("data.train") && Contains("found integer"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": "muon"}})"), Contains("optimizer.matrix = \"muon\": expected a rule object"));
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": {}}})"), Contains("optimizer.overrides = {}: expected a list of rule objects"));
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": [3]}})"), Contains("optimizer.overrides.0 = 3: expected a rule object"));
  CHECK_THAT(error_of("[]"), Contains("expected one JSON object, found array"));
}

TEST_CASE("values out of range or out of the list name what is allowed") {
  CHECK_THAT(error_of(R"({"training": {"steps": 0}})"), Contains("training.steps = 0: expected an integer from 1 to 1e12"));
  CHECK_THAT(error_of(R"({"model": {"dropout": -0.5}})"), Contains("model.dropout = -0.5: expected a number of at least 0 and below 1"));
  CHECK_THAT(error_of(R"({"sample": {"top_p": 0}})"), Contains("sample.top_p = 0: expected a number above 0 and at most 1"));
  CHECK_THAT(error_of(R"({"communication": {"step_timeout_seconds": 0}})"), Contains("expected a number above 0"));
  CHECK_THAT(error_of(R"({"distribution": {"stage": 4}})"), Contains("distribution.stage = 4: expected an integer from 1 to 3"));
  CHECK_THAT(error_of(R"({"seed": 18446744073709551615})"), Contains("seed = 18446744073709551615"));
  CHECK_THAT(error_of(R"({"device": "gpu"})"), Contains("device = \"gpu\": expected one of auto, cpu, cuda, reference"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"preset": "kellar"}}})"), Contains("did you mean \"keller\"?"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"restarts": [0]}}})"), Contains("optimizer.matrix.restarts") && Contains("found 0"));
}

TEST_CASE("keys that the rule does not use are refused") {
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"beta1": 0.9}}})"),
             Contains("optimizer.matrix.beta1 = 0.9: rule \"muon\"") && Contains("it belongs to adamw"));
  CHECK_THAT(error_of(R"({"optimizer": {"auxiliary": {"momentum": 0.9}}})"), Contains("it belongs to sgd, muon"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"match": "*"}}})"), Contains("only entries of optimizer.overrides"));
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": [{"learning_rate": 1}]}})"),
             Contains("optimizer.overrides.0: missing key \"match\"") && Contains("missing key \"rule\""));
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": [{"match": "", "rule": "sgd"}]}})"), Contains("expected a pattern"));
}

TEST_CASE("rules between fields name both") {
  CHECK_THAT(error_of(R"({"model": {"width": 10, "heads": 3}})"), Contains("model.width = 10: not a multiple of model.heads = 3"));
  CHECK_THAT(error_of(R"({"training": {"batch_tokens": 1000}})"),
             Contains("training.batch_tokens = 1000: not a multiple of model.context_length = 256; 768 would be"));
  const auto schedule = [](const std::string& json) { return R"({"optimizer": {"auxiliary": {"schedule": )" + json + "}}}"; };
  CHECK_THAT(error_of(schedule(R"({"warmup_steps": 1001})")),
             Contains("optimizer.auxiliary.schedule.warmup_steps = 1001: more than") && Contains("training.steps = 1000"));
  CHECK(error_of(schedule(R"({"warmup_steps": 1000})")) == "no error");
  CHECK_THAT(error_of(schedule(R"({"type": "warmup_stable_decay", "warmup_steps": 6, "decay_steps": 5, "total_steps": 10})")),
             Contains("decay_steps = 5") && Contains("warmup_steps = 6") && Contains("total_steps = 10"));
  CHECK_THAT(error_of(schedule(R"({"type": "cosine", "decay_steps": 5})")), Contains("warmup_stable_decay"));
  CHECK_THAT(error_of(schedule(R"({"type": "cosine", "decay_fraction": 0.5})")), Contains("decay_fraction = 0.5: only"));
  CHECK_THAT(error_of(schedule(R"({"warmup_steps": 6, "warmup_fraction": 0.5})")),
             Contains("warmup_steps = 6") && Contains("warmup_fraction = 0.5: set one of them to 0"));
  CHECK_THAT(error_of(schedule(R"({"type": "warmup_stable_decay", "warmup_fraction": 0.5, "decay_fraction": 0.75})")),
             Contains("decay_fraction = 0.75") && Contains("more than the whole"));
  CHECK_THAT(error_of(R"({"data": {"format": "text", "tokenizer": "none"}})"), Contains("data.tokenizer") && Contains("data.format"));
  CHECK_THAT(error_of(R"({"data": {"format": "llmc"}})"), Contains("model.vocabulary_size = 0") && Contains("data.format = \"llmc\""));
  CHECK_THAT(error_of(R"({"optimizer": {"auxiliary": {"rule": "muon"}}})"), Contains("optimizer.auxiliary.rule"));
  CHECK_THAT(error_of(R"({"optimizer": {"auxiliary": {"rule": "sgd", "nesterov": true, "momentum": 0}}})"),
             Contains("nesterov") && Contains("momentum"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"iterations": 5, "restarts": [5]}}})"),
             Contains("restarts") && Contains("iterations = 5"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"restarts": [3, 2]}}})"), Contains("ascending"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"iteration_form": "direct", "restarts": [2]}}})"), Contains("iteration_form"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"tune_numerics": true, "iteration_form": "gram"}}})"),
             Contains("tune_numerics") && Contains("iteration_form"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"newton_schulz_dtype": "float16", "normalization": "spectral"}}})"),
             Contains("optimizer.matrix.newton_schulz_dtype") && Contains("normalization"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"newton_schulz_dtype": "half"}}})"), Contains("newton_schulz_dtype = \"half\""));
  CHECK_THAT(error_of(R"({"optimizer": {"auxiliary": {"newton_schulz_dtype": "float16"}}})"), Contains("newton_schulz_dtype"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"normalization_safety": 1.5}}})"), Contains("epsilon_mode"));
  for (const char* name : {"", "..", "a/b", "a b"}) CHECK_THAT(error_of(R"({"name": ")" + std::string(name) + "\"}"), Contains("name = "));
}

TEST_CASE("distribution: every key refuses what it cannot mean") {
  const auto with = [](const std::string& json) { return error_of(R"({"distribution": )" + json + "}"); };
  CHECK_THAT(with(R"({"method": "owners"})"), Contains("distribution.method = \"owners\"") && Contains("did you mean \"owner\"?"));
  for (const char* method : {"gather", "replicated"})
    CHECK_THAT(with(std::string(R"({"memory_limit_bytes": 1000, "method": ")") + method + R"("})"),
               Contains("distribution.memory_limit_bytes = 1000") && Contains(std::string("distribution.method = \"") + method));
  CHECK_THAT(with(R"({"planner": "milp", "planner_time_limit_seconds": 121})"), Contains("distribution.planner_time_limit_seconds = 121") &&
                                                                                    Contains("communication.start_timeout_seconds") &&
                                                                                    Contains("302, found 300"));
  CHECK_THAT(with(R"({"planner": "cbc"})"), Contains("distribution.planner = \"cbc\"") && Contains("milp"));
  CHECK_THAT(with(R"({"cost_model": "guess"})"), Contains("distribution.cost_model") && Contains("measured"));
  CHECK_THAT(with(R"({"reduce": "first"})"), Contains("distribution.reduce") && Contains("auto, last, every"));
  CHECK_THAT(with(R"({"publish_form": "ring"})"), Contains("distribution.publish_form") && Contains("broadcasts"));
  CHECK_THAT(with(R"({"compute_dtype": "float16"})"), Contains("distribution.compute_dtype") && Contains("bfloat16"));
  CHECK_THAT(with(R"({"gradient_dtype": "half"})"), Contains("distribution.gradient_dtype") && Contains("bfloat16"));
  CHECK_THAT(with(R"({"nodes": -1})"), Contains("distribution.nodes = -1"));
  CHECK_THAT(with(R"({"replicas": 1.5})"), Contains("distribution.replicas = 1.5"));
  CHECK_THAT(with(R"({"memory_limit_bytes": -5})"), Contains("distribution.memory_limit_bytes = -5"));
  CHECK_THAT(with(R"({"planner_time_limit_seconds": 0})"), Contains("distribution.planner_time_limit_seconds = 0"));
  CHECK_THAT(with(R"({"window_units": 0})"), Contains("distribution.window_units = 0"));
  CHECK_THAT(with(R"({"look_ahead": 0})"), Contains("distribution.look_ahead = 0"));
  CHECK_THAT(with(R"({"overlap": 1})"), Contains("distribution.overlap = 1"));
  for (const char* entry : {"blocks.*", "=3", "blocks.*=4", "blocks.*="})
    CHECK_THAT(with(text(R"({"unit_stages": ["embedding=1", ")", entry, "\"]}")),
               Contains("distribution.unit_stages.1") && Contains(entry) && Contains("pattern=stage"));
  CHECK_THAT(with(R"({"reduce": "last"})"), Contains("distribution.reduce = \"last\"") && Contains("found stage 2"));
  CHECK_THAT(with(R"({"reduce": "last", "stage": 1, "unit_stages": ["blocks.*=3"]})"), Contains("found stage 3"));
  CHECK(with(R"({"reduce": "last", "stage": 1})") == "no error");
  CHECK_THAT(with(R"({"method": "replicated", "stage": 3})"), Contains("distribution.method = \"replicated\""));
  CHECK_THAT(with(R"({"method": "gather", "stage": 3})"), Contains("distribution.method = \"gather\"") && Contains("stage 3"));
  CHECK_THAT(with(R"({"method": "gather", "compute_dtype": "bfloat16"})"), Contains("distribution.compute_dtype"));
  CHECK_THAT(with(R"({"nodes": 2, "replicas": 3})"), Contains("distribution.replicas = 3") && Contains("distribution.nodes = 2"));
  CHECK_THAT(error_of(R"({"tuning": {"enabled": "yes"}})"), Contains("tuning.enabled"));
  CHECK_THAT(error_of(R"({"tuning": {"cache_directory": 3}})"), Contains("tuning.cache_directory"));
}

TEST_CASE("votes: what they cannot be joined with is refused with the remedy") {
  const auto with = [](const std::string& matrix, const std::string& distribution) {
    return error_of(R"({"optimizer": {"matrix": )" + matrix + R"(}, "distribution": )" + distribution + "}");
  };
  const std::string sign_muon = R"({"rule": "sign_muon"})";
  CHECK(with(sign_muon, "{}") == "no error");
  for (const char* method : {"gather", "replicated"})
    CHECK_THAT(with(sign_muon, text(R"({"method": ")", method, R"("})")),
               Contains(text("distribution.method = \"", method, "\"")) && Contains("choose \"owner\""));
  CHECK(with(sign_muon, R"({"stage": 3})") == "no error");  // the ranks decide whether a worker has shards
  CHECK(with(R"({"rule": "muon"})", R"({"stage": 3})") == "no error");
  CHECK_THAT(error_of(R"({"optimizer": {"overrides": [{"match": "head*", "rule": "signum"}]}, "distribution": {"method": "gather"}})"),
             Contains("distribution.method = \"gather\""));
  CHECK_THAT(with(sign_muon, R"({"vote_transport": "int8"})"), Contains("distribution.vote_transport") && Contains("int8_sum"));
  CHECK_THAT(with(R"({"rule": "sign_muon", "post_polar": true, "rate_shape": "mup"})", "{}"),
             Contains("optimizer.matrix.post_polar = true") && Contains("rate_shape"));
  CHECK_THAT(with(R"({"rule": "signum", "post_polar": true})", "{}"), Contains("post_polar") && Contains("sign_muon"));
  CHECK_THAT(with(R"({"rule": "sign_muon", "preset": "keller"})", "{}"),
             Contains("optimizer.matrix.preset") && Contains("custom, paper") &&
                 Contains("replace the whole object: --set optimizer.matrix='{\"rule\": \"sign_muon\"}'"));
  CHECK_THAT(with(R"({"rule": "muon", "preset": "paper"})", "{}"), Contains("optimizer.matrix.preset") && Contains("moonlight"));
  CHECK_THAT(with(R"({"rule": "muon", "decay": "coupled"})", "{}"), Contains("optimizer.matrix.decay") && Contains("lion"));
  CHECK_THAT(with(R"({"rule": "sign_muon", "scale": "spectral"})", "{}"), Contains("optimizer.matrix.scale"));
  CHECK_THAT(error_of(R"({"optimizer": {"auxiliary": {"rule": "sign_muon"}}})"),
             Contains("optimizer.auxiliary.rule") && Contains("signum"));
  CHECK(error_of(R"({"optimizer": {"matrix": {"rule": "sign_muon"}, "auxiliary": {"rule": "signum"}}})") == "no error");
}

TEST_CASE("all errors of file and overrides are listed at once") {
  const std::string message =
      error_of(R"({"model": {"layres": 1, "heads": 0}, "seed": -1, "nmae": "x"})", {"training.stpes=3", "logging.level=loud"});
  CHECK_THAT(message, Contains("6 errors") && Contains("model.layres") && Contains("model.heads = 0") && Contains("seed = -1") &&
                          Contains("did you mean \"name\"?") && Contains("--set training.stpes") &&
                          Contains("logging.level = \"loud\" (from --set)"));
}

TEST_CASE("overrides that cannot be applied") {
  CHECK_THAT(error_of("{}", {"training.stpes=3"}), Contains("did you mean \"training.steps\"?"));
  CHECK_THAT(error_of("{}", {"optimizer.matrix.learnin_rate=3"}), Contains("did you mean \"optimizer.matrix.learning_rate\"?"));
  CHECK_THAT(error_of("{}", {"optimzer.matrix.learning_rate=3"}), Contains("did you mean \"optimizer.matrix.learning_rate\"?"));
  CHECK_THAT(error_of("{}", {"steps=3"}), Contains("did you mean \"training.steps\"?"));
  CHECK_THAT(error_of("{}", {"training.steps"}), Contains("expected key=value"));
  CHECK_THAT(error_of("{}", {"=3"}), Contains("expected key=value"));
  CHECK_THAT(error_of("{}", {"training..steps=3"}), Contains("--set training..steps"));
  CHECK_THAT(error_of("{}", {"optimizer.overrides.0.rule=sgd"}), Contains("optimizer.overrides has 0 elements"));
  CHECK_THAT(error_of("{}", {"optimizer.overrides.x.rule=sgd"}), Contains("--set optimizer.overrides.x.rule"));
  CHECK_THAT(error_of(R"({"model": 3})", {"model.layers=2"}), Contains("--set model.layers: model is integer in the file"));
  CHECK_THAT(error_of("{}", {"training.steps=many"}), Contains("training.steps = \"many\" (from --set): expected an integer"));
  CHECK_THAT(error_of("{}", {"optimizer.matrix.learning_rate=1e400"}),
             Contains("--set optimizer.matrix.learning_rate=1e400: out of the range of numbers, expected a number"));
  CHECK_THAT(error_of(R"({"optimizer": {"matrix": {"preset": "keller"}}})", {"optimizer.matrix.rule=sign_muon"}),
             Contains("optimizer.matrix.preset") && Contains("--set optimizer.matrix='{\"rule\": \"sign_muon\"}'"));
  CHECK_THAT(error_of("{}", {"model.layers.x=2"}), Contains("--set model.layers.x"));
}

TEST_CASE("text that is no JSON, and files that are not there") {
  CHECK_THAT(error_of("{\"seed\": 1,}"), Contains("run.json"));
  CHECK_THAT(error_of("{\"seed\": 1, \"seed\": 2}"), Contains("seed"));
  CHECK_THAT(error_of(R"({"grad": 1e400})"), Contains("run.json:1:") && Contains("the number is out of range"));
  CHECK_THROWS_AS(load_configuration("/nonexistent/run.json"), StorageError);
}
