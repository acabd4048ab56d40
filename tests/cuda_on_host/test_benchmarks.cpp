// The benchmarks with --device cuda, in small, on the host stand-in: that they measure what they say and end with a verdict. The
// numbers mean nothing here.
#include <unistd.h>

#include <filesystem>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/mpi_launch.h"

using namespace dmuon;
using dmuon::testing::Ended;

namespace {

const std::string model = text("--config ", DMUON_SOURCE,
                               "/configs/bench_gpt2_124m.json --set model.layers=1 --set model.width=32 --set model.heads=2 --set "
                               "model.context_length=16 --set model.vocabulary_size=64 --set training.batch_tokens=32 --set "
                               "distribution.compute_dtype=bfloat16 ");

Json::Array rows_of(const std::string& arguments, const std::string& environment = "DMUON_CUDA_PLUGIN=" DMUON_CUDA_ON_HOST) {
  const std::string file = (std::filesystem::temp_directory_path() / text("dmuon-bench-", getpid(), ".json")).string();
  const Ended ended = testing::run_command(text("env ", environment, " ", DMUON_BENCH, " ", arguments, " --pairs 2 --json ", file), 120);
  INFO(arguments << "\n" << ended.output);
  REQUIRE(ended.exit_code == 0);
  const Json report = parse_json(read_file(file), "a report");
  std::filesystem::remove(file);
  CHECK(report.at("machine").at("processor").as_string() == "host stand-in");
  return report.at("rows").as_array();
}

std::vector<std::string> keys_of(const Json& row) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.as_object()) keys.push_back(key);
  return keys;
}

const Json& row_named(const Json::Array& rows, const std::string& key, const std::string& name) {
  for (const Json& row : rows)
    if (row.at(key).as_string() == name) return row;
  throw std::runtime_error("no row " + name);
}

}  // namespace

TEST_CASE("train-step on a device: phases, the best product and every kernel, in the time of the device") {
  const Json::Array rows = rows_of("train-step --device cuda " + model);
  const auto milliseconds = [&](const std::string& item) { return row_named(rows, "item", item).at("milliseconds").as_number(); };
  CHECK(milliseconds("forward and backward") > 0.0);
  // Medians of two steps: the larger of each.
  CHECK(milliseconds("  forward") > 0.0);
  CHECK(milliseconds("  forward") + milliseconds("  backward") == Approx(milliseconds("forward and backward")).epsilon(0.7));
  CHECK(row_named(rows, "item", "norm and update").at("milliseconds").as_number() > 0.0);
  CHECK(row_named(rows, "item", "forward and backward").at("fraction_of_gemm").as_number() > 0.0);
  CHECK(row_named(rows, "item", "best product").at("gflops").as_number() > 0.0);
  for (const char* kernel : {"multiply", "attention_forward", "attention_backward", "batched_product", "muon_momentum", "adamw"})
    CHECK(milliseconds(text("    ", kernel)) > 0.0);
}

TEST_CASE("gemm, newton-schulz and device-update on a device") {
  const Json::Array products = rows_of("gemm --device cuda --small yes");
  REQUIRE(products.size() == 4);  // full and symmetric in float32 and float16
  for (const Json& row : products) CHECK(row.at("multiply_gflops").as_number() > 0.0);
  const Json::Array newton_schulz = rows_of("newton-schulz --device cuda --small yes");
  REQUIRE(newton_schulz.size() == 3);
  CHECK(newton_schulz[0].at("batch").as_integer() == 2);
  // The library's fastest form beside it, with results that agree with ours: the benchmark ends with an error otherwise.
  const std::vector<std::string> forms{"one by one", "batches of 1", "batches of 2"};
  for (const Json& row : newton_schulz) {
    CHECK(row.at("speedup").as_number() > 0.0);
    CHECK_THAT(forms, Catch::VectorContains(row.at("library_form").as_string()));
  }
  CHECK(rows_of("newton-schulz --device cuda --small yes --shapes 8x24*5").size() == 1);  // groups of four, the last one shorter
  const Json::Array update = rows_of("device-update --small yes");
  CHECK(update.size() > 6);
  for (const Json& row : update) CHECK(!row.at("library_form").as_string().empty());
}

TEST_CASE("device-bars gives every bar a verdict") {
  const Json::Array rows = rows_of("device-bars --small yes --batches 2,3 " + model);
  REQUIRE(rows.size() == 2 + 2 * 3);
  for (const Json& row : rows) {
    INFO(row.dump());
    CHECK(keys_of(row) == std::vector<std::string>{"bar", "found", "wanted", "verdict", "details"});
    CHECK(row.at("found").as_number() > 0.0);
  }
  // The host is no tensor core, but its memory is counted as a device's.
  for (const char* batch : {"B = 2", "B = 3"}) {
    CHECK(row_named(rows, "bar", text(batch, ": memory / dry run")).at("verdict").as_string() == "passed");
    CHECK(row_named(rows, "bar", text(batch, ": model FLOPs / best product")).at("verdict").as_string() == "failed");
    CHECK(row_named(rows, "bar", text(batch, ": norm, update and publish / their bound")).at("verdict").as_string() == "-");
  }
}

TEST_CASE("a benchmark on a device that is not there says so") {
  const Ended ended =
      testing::run_command(text("env DMUON_CUDA_PLUGIN=/nonexistent.so ", DMUON_BENCH, " train-step --device cuda ", model), 60);
  CHECK(ended.exit_code != 0);
  CHECK_THAT(ended.output, Catch::Contains("/nonexistent.so"));
}
