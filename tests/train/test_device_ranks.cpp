// Whole runs of several ranks on devices, through NCCL: they train like the CPU, and end when a rank or NCCL fails.
#include "support/catch.h"
#include "train/device_settings.h"
#include "train/vote_settings.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

// The start measures nothing, and four ranks cut the units unevenly, so that they are published by broadcasts: the first sends are those of
// a gradient reduction, the first all-gather is that of the norm.
const std::string broadcasts = "--set distribution.publish_form=broadcasts ";

// Of four ranks, two nodes and four steps of stage 3: every rank's phases and, marked by its streams, the same collectives.
void check_trace(const std::string& file) {
  std::map<int64_t, std::map<std::string, int>> phases, collectives;  // rank -> name -> count
  const Json trace = parse_json(read_file(file), file);
  for (const Json& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() != "X") continue;
    CHECK(event.at("dur").as_number() >= 0.0);
    const std::string category = event.at("cat").as_string();
    if (category == "phase") ++phases[event.at("pid").as_integer()][event.at("name").as_string()];
    if (category == "communication") ++collectives[event.at("pid").as_integer()][event.at("name").as_string()];
  }
  REQUIRE(phases.size() == 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (const char* phase : {"forward", "backward", "update"}) CHECK(phases[rank][phase] == 4);
    for (const std::string unit : {"blocks.0", "blocks.1"}) {
      int of_unit = 0;
      for (const auto& [name, number] : collectives[rank]) of_unit += name.ends_with(unit) ? number : 0;
      CHECK(of_unit >= 4 * 4);  // two reductions and two publications, four steps
    }
    CHECK(collectives[rank] == collectives[0]);
  }
}

struct Way {
  std::string name;
  int ranks;
  std::string arguments;
};

}  // namespace

TEST_CASE("ranks on devices train to the losses of the CPU") {
  const SmallRun run;
  const std::string adamw = "--set optimizer.matrix.rule=adamw --set optimizer.matrix.learning_rate=0.002 ";
  const std::string qwen =
      "--set model.family=qwen --set model.dropout=0 --set model.key_value_heads=1 --set model.head_width=8 "
      "--set model.query_key_normalization=true ";
  const auto stage = [](int number) { return distribution("stage", std::to_string(number)); };
  const std::string grid = distribution("nodes", "2"), trace_file = run.path("trace.json ");
  const std::vector<Way> ways = {
      {"muon_1", 2, stage(1) + distribution("planner", "milp") + "--set communication.start_timeout_seconds=80 "},
      {"muon_2", 4, stage(2) + distribution("planner", "round_robin") + distribution("unit_stages", "[\"blocks.0=3\", \"head*=1\"]")},
      {"muon_3", 4, stage(3)},
      {"muon_grid1", 4, grid + stage(1)},
      {"muon_grid3", 4, grid + stage(3) + "--trace " + trace_file},
      {"adamw_1", 2, adamw + stage(1)},
      {"adamw_2", 2, adamw + stage(2)},
      {"adamw_grid3", 4, adamw + grid + stage(3)},
      {"muon_gather", 2, distribution("method", "gather")},
      {"muon_replicated", 2, distribution("method", "replicated")},
      {"qwen_1", 2, qwen + stage(1)},
      {"qwen_2", 2, qwen + stage(2)},
      {"qwen_grid3", 4, qwen + grid + stage(3)},
      {"votes2_1", 2, votes + "--set optimizer.matrix.per_head=true " + distribution("replicas", "2") + stage(1)},
      {"votes4int8_3", 4, votes + distribution("replicas", "2") + stage(3) + transport("int8_sum")},
      {"votes4_grid", 4, votes + grid + transport("packed_scatter")},
  };
  // One rank on the CPU is the measure of every distribution of it; votes depend on the number of workers.
  std::map<std::string, std::vector<double>> measured;
  const auto expected_of = [&](const Way& way) {
    const std::string name = text(way.name.substr(0, way.name.find('_')), "_cpu");
    const bool vote = name.starts_with("votes");
    if (measured.count(name) == 0) {
      const std::string one = name.starts_with("adamw") ? adamw : name.starts_with("qwen") ? qwen : "";
      const Ended ended = run.train(vote ? way.ranks : 1, name, "--set device=cpu " + fewer + (vote ? way.arguments : one));
      INFO(name << "\n" << ended.output);
      REQUIRE(ended.exit_code == 0);
      measured[name] = losses(run, name);
    }
    return measured[name];
  };
  for (const Way& way : ways) {
    const std::vector<double> expected = expected_of(way);
    const Ended ended = run.train(way.ranks, way.name, cuda + fewer + way.arguments, plugins, 120);
    INFO(way.name << "\n" << ended.output);
    REQUIRE(ended.exit_code == 0);
    const std::vector<double> found = losses(run, way.name);
    REQUIRE(expected.size() == 4);
    REQUIRE(found.size() == 4);
    for (size_t step = 0; step < found.size(); ++step) CHECK(found[step] == Approx(expected[step]).epsilon(1e-4));
  }
  check_trace(run.path("trace.json"));
}

TEST_CASE("a dry run for several devices tells what they take, reductions through NCCL included") {
  const SmallRun run;
  // Bytes before "taken from the device" in a table of the one, a sentence of the other; without what every size takes alike.
  const auto megabytes = [](std::string output, const std::string& before, const std::string& after) {
    const size_t begin = output.find(before) + before.size();
    REQUIRE(output.find(before) != std::string::npos);
    const double value = std::stod(output.substr(begin));
    CHECK(output.find(after, begin) != std::string::npos);
    return value - 33.55;  // cuBLAS's workspace
  };
  const std::string larger =
      "--set training.steps=2 --set evaluation.interval=0 --set model.width=128 --set model.layers=4 --set device=cuda " +
      distribution("stage", "3");
  const Ended predicted = run.train(1, "dry", larger + "--dry-run --ranks 2", plugins);
  INFO(predicted.output);
  REQUIRE(predicted.exit_code == 0);
  const Ended ended = run.train(2, "run", larger, plugins);
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  const double expected = megabytes(predicted.output, "taken from the device", " MB"),
               found = megabytes(ended.output, "in tensors, ", " MB");
  CHECK(expected == Approx(found).epsilon(0.05));
}

TEST_CASE("an NCCL error in a gradient reduction ends all ranks and is named") {
  const SmallRun run;
  const Ended ended = run.train(4, "error", cuda + fewer + broadcasts, plugins + "DMUON_NCCL_ON_HOST_FAULT=1:error:send");
  INFO(ended.output);
  CHECK(ended.exit_code == 4);
  CHECK(ended.output.find("reduce of ") != std::string::npos);
  CHECK(ended.output.find("on rank 1") != std::string::npos);
  CHECK(ended.output.find("unhandled system error (planned by a test)") != std::string::npos);
  CHECK(ended.seconds < 30);
}

TEST_CASE("an operation of a training step that never begins on one rank expires and is named") {
  const SmallRun run;
  // The host waits behind either of them where it reads the norm.
  const std::vector<std::pair<std::string, std::string>> faults = {{"send", "reduce of "}, {"all_gather", "gradient norm"}};
  for (const auto& [fault, label] : faults) {
    const Ended ended =
        run.train(4, "stopped_" + fault,
                  cuda + fewer + broadcasts + "--set communication.step_timeout_seconds=4 --set communication.start_timeout_seconds=20 ",
                  plugins + "DMUON_NCCL_ON_HOST_FAULT=1:stop:" + fault);
    INFO(ended.output);
    CHECK(ended.exit_code == 4);
    CHECK(ended.output.find(label) != std::string::npos);
    CHECK(ended.output.find("did not finish within 4") != std::string::npos);
    CHECK(ended.seconds < 30);
  }
}

TEST_CASE("all communicators of a rank are aborted together: one whose work waits behind another's keeps none from it") {
  const SmallRun run;
  for (const char* fault : {"send", "all_gather"}) {
    const Ended ended = run.train(4, text("grid_", fault),
                                  cuda + fewer + broadcasts + distribution("nodes", "2") + distribution("stage", "3") +
                                      "--set communication.step_timeout_seconds=4 --set communication.start_timeout_seconds=20 ",
                                  plugins + text("DMUON_NCCL_ON_HOST_FAULT=1:stop:", fault));
    INFO(ended.output);
    CHECK(ended.exit_code == 4);
    CHECK(ended.output.find("did not finish within ") != std::string::npos);
    CHECK(ended.output.find("has lasted") == std::string::npos);  // what the watchdog says of a rank that hangs
    CHECK(ended.seconds < 60);
  }
}

TEST_CASE("a rank whose NCCL takes no call hears what the others say, and blames nobody at its own deadline") {
  const SmallRun run;
  // This launcher ends a job when a rank ends; here each has to end by itself.
  const auto train = [&](const std::string& output, int deadline, const std::string& faults) {
    return run_command(
        text(DMUON_MPIEXEC, " --oversubscribe --bind-to none --enable-recovery -np 2 env ", plugins, "DMUON_NCCL_ON_HOST_FAULT=", faults,
             " ", DMUON_TRAIN, " --config ", run.path("run.json"), " --set output=", run.path(output), " --set threads=1 ", cuda, fewer,
             broadcasts, "--set communication.step_timeout_seconds=", deadline, " --set communication.start_timeout_seconds=20"),
        90);
  };
  const Ended told = train("told", 60, "1:pending:send,0:error:send");
  INFO(told.output);
  for (const char* rank : {"rank 0 failed", "rank 1 failed"}) CHECK(count(told.output, rank) > 0);
  CHECK(told.output.find("gave up: ") != std::string::npos);
  CHECK(told.output.find("planned by a test") != std::string::npos);
  CHECK(told.seconds < 30);
  const Ended alone = train("alone", 4, "1:pending:send");
  INFO(alone.output);
  for (const char* rank : {"rank 0 failed", "rank 1 failed"}) CHECK(count(alone.output, rank) > 0);
  CHECK(alone.output.find("did not finish within 4") != std::string::npos);
  CHECK(alone.output.find("NCCL_SOCKET_IFNAME") == std::string::npos);
  CHECK(alone.seconds < 30);
}

TEST_CASE("ranks whose launcher gave each a list of GPUs of its own take the first of it") {
  const SmallRun run;
  run.write("own.sh", "export CUDA_VISIBLE_DEVICES=$((2 * OMPI_COMM_WORLD_RANK + 1)),$((2 * OMPI_COMM_WORLD_RANK + 2)); exec \"$@\"");
  const Ended ended =
      run.train(3, "own", cuda + "--set training.steps=1 --set evaluation.interval=0 ", plugins + "bash " + run.path("own.sh"));
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
}

TEST_CASE("plug-ins that are missing, or not of this build, or not of one build, are refused with the file and the remedy") {
  const SmallRun run;
  const std::string copy = run.path("copy.so");
  std::filesystem::copy_file(DMUON_CUDA_ON_HOST, copy);
  struct Pair {
    std::string cuda, nccl;
    std::vector<std::string> said;
  };
  std::vector<Pair> pairs = {
      {DMUON_CUDA_ON_HOST, "/no/nccl.so", {"/no/nccl.so, which is missing"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_VERSION, {DMUON_TEST_WRONG_VERSION, "plug-in version", "build both from the same sources"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_SIZE, {DMUON_TEST_WRONG_SIZE, "a table of"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_INTERFACE, {DMUON_TEST_WRONG_INTERFACE, "interface fedcba9876543210"}},
      {copy, DMUON_NCCL_ON_HOST, {DMUON_NCCL_ON_HOST, copy, "name files of one build"}}};
  // The real one, on the stand-in's device.
  if (const std::string real = DMUON_NCCL; !real.empty()) pairs.push_back({DMUON_CUDA_ON_HOST, real, {real, "name files of one build"}});
  for (const Pair& pair : pairs) {
    const Ended ended = run.train(2, "refused", cuda + fewer, text("DMUON_CUDA_PLUGIN=", pair.cuda, " DMUON_NCCL_PLUGIN=", pair.nccl));
    INFO(ended.output);
    CHECK(ended.exit_code == 6);
    for (const std::string& part : pair.said) CHECK(ended.output.find(part) != std::string::npos);
  }
}
