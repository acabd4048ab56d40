// Whole runs of dmuon_train on a device beside those of the CPU: in float32 they report the same losses, in bfloat16 nearly the same;
// what was saved resumes to the bit. The device is the one under test, or the reference backend where that is the CPU.
#include <cmath>

#include "support/catch.h"
#include "support/test_device.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

std::string on_device() { return dmuon::testing::test_device_is_cuda() ? "--set device=cuda " : "--set device=reference "; }
const std::string in_bfloat16 = "--set distribution.compute_dtype=bfloat16 ";
// Kernels of a device run on the host here, or as plain loops: small shapes, few evaluations.
const std::string small =
    "--set model.layers=1 --set model.width=16 --set training.batch_tokens=48 --set evaluation.interval=0 --set "
    "evaluation.maximum_tokens=96 ";

std::vector<double> values_of(const SmallRun& run, const std::string& output, const std::string& key) {
  std::vector<double> values;
  const std::string metrics = run.metrics(output);
  for (size_t at = metrics.find(key + "="); at != std::string::npos; at = metrics.find(key + "=", at + 1))
    values.push_back(std::stod(metrics.substr(at + key.size() + 1)));
  return values;
}

void train(const SmallRun& run, const std::string& output, const std::string& arguments) {
  const Ended ended = run.train(1, output, small + arguments, "", 240);
  INFO(output << "\n" << ended.output);
  REQUIRE(ended.exit_code == 0);
}

// Every loss of training and of validation.
void check_losses(const SmallRun& run, const std::string& found, const std::string& expected, double tolerance) {
  for (const char* key : {"train_loss", "validation_loss"}) {
    const std::vector<double> a = values_of(run, found, key), b = values_of(run, expected, key);
    REQUIRE(!b.empty());
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      INFO(found << ": " << key << " " << i);
      CHECK(a[i] == Approx(b[i]).epsilon(tolerance));
    }
  }
}

}  // namespace

TEST_CASE("a run on the device reports the losses of the CPU, with AdamW, with Muon and with votes", "[device]") {
  const SmallRun run;
  const std::pair<std::string, std::string> rules[] = {
      {"adamw", "--set optimizer.matrix.rule=adamw --set optimizer.matrix.learning_rate=0.002 "},
      {"muon", ""},
      {"signum", "--set optimizer.matrix.rule=signum --set optimizer.matrix.learning_rate=0.002 "}};
  for (const auto& [name, arguments] : rules) {
    train(run, name + "_cpu", arguments + "--set device=cpu");
    train(run, name, arguments + on_device());
    check_losses(run, name, name + "_cpu", 1e-4);
    CHECK(run.metrics(name) != run.metrics(name + "_cpu"));  // another device: it did run there
  }
}

TEST_CASE("a run in bfloat16 follows the one in float32, recomputed or not, and resumes to the bit", "[device]") {
  const SmallRun run;
  const std::string longer = "--set training.steps=20 ";
  train(run, "single", longer + "--set device=cpu");
  train(run, "narrow", longer + on_device() + in_bfloat16);
  check_losses(run, "narrow", "single", 2e-2);
  train(run, "recomputed", longer + on_device() + in_bfloat16 + "--set training.recompute=true");
  CHECK(run.metrics("recomputed") == run.metrics("narrow"));
  train(run, "gathered", longer + on_device() + in_bfloat16 + "--set distribution.stage=3");
  CHECK(run.metrics("gathered") == run.metrics("narrow"));

  CHECK(run.train(1, "parts", small + longer + on_device() + in_bfloat16, "DMUON_CRASH_AT=after_rename", 240).exit_code != 0);
  train(run, "parts", longer + on_device() + in_bfloat16 + "--resume must");
  CHECK(run.metrics("parts") == run.metrics("narrow"));
  CHECK(run.tensors("parts", 20) == run.tensors("narrow", 20));
}

TEST_CASE("Newton-Schulz of a run in bfloat16 is in float16 where the device can, and a resume says when it is not", "[device]") {
  const SmallRun run;
  const bool can = dmuon::testing::test_device_is_cuda();
  const auto dtype_of = [&](const std::string& output) {
    const Json rules = parse_json(read_file(run.path(output) + "/checkpoints/step-00000012/rules.json"), "rules.json");
    return rules.as_array().front().at("description").at("newton_schulz_dtype").as_string();
  };
  const std::string in_float32 = "--set optimizer.matrix.newton_schulz_dtype=float32 ";
  train(run, "automatic", on_device() + in_bfloat16);
  train(run, "float32", on_device() + in_bfloat16 + in_float32);
  CHECK(dtype_of("automatic") == (can ? "float16" : "float32"));
  CHECK(dtype_of("float32") == "float32");
  CHECK((run.metrics("automatic") != run.metrics("float32")) == can);
  // Checkpoints hold the float32 masters: a run in float32 takes them, on the CPU too, if Newton-Schulz stays as it was.
  const std::string on_cpu = "--set training.steps=13 --set device=cpu ";
  train(run, "widened", on_cpu + "--resume " + run.path("float32"));
  if (!can) return;
  const Ended other = run.train(1, "refused", small + on_cpu + "--resume " + run.path("automatic"));
  CHECK(other.exit_code != 0);
  CHECK_THAT(other.output, Catch::Contains("another optimizer description") && Catch::Contains("newton_schulz_dtype"));
  const Ended incapable = run.train(1, "incapable", small + on_cpu + "--set optimizer.matrix.newton_schulz_dtype=float16");
  CHECK(incapable.exit_code != 0);
  CHECK_THAT(incapable.output, Catch::Contains("optimizer.matrix.newton_schulz_dtype") && Catch::Contains("device \"cpu\""));
}

TEST_CASE("a model trained in bfloat16 writes its samples with its own values", "[device]") {
  const SmallRun run;
  const std::string arguments = on_device() + in_bfloat16 + "--set sample.tokens=8 --set sample.prompt=word ";
  train(run, "resident", arguments);
  train(run, "gathered", arguments + "--set distribution.stage=3");
  CHECK(run.tensors("resident", 12) == run.tensors("gathered", 12));
}

TEST_CASE("gelu_tanh inside the products of the device reports the losses of the CPU", "[device]") {
  const SmallRun run;
  const std::string arguments = "--set model.activation=gelu_tanh ";
  train(run, "gelu_tanh_cpu", arguments + "--set device=cpu");
  train(run, "gelu_tanh", arguments + on_device());
  check_losses(run, "gelu_tanh", "gelu_tanh_cpu", 1e-4);
}

TEST_CASE("a run that diverges on the device ends with 3, names step and tensor, and saves nothing bad", "[device]") {
  const SmallRun run;
  const Ended ended =
      run.train(1, "nan", small + on_device() + "--set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0");
  INFO(ended.output);
  CHECK(ended.exit_code == 3);
  CHECK_THAT(ended.output, Catch::Contains("is not finite") && Catch::Contains("step "));
  CHECK_FALSE(std::filesystem::exists(run.path("nan") + "/checkpoints/step-00000004"));
}
