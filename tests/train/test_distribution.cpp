// Whole runs of every way to distribute them: they train alike, resume each other's checkpoints, and tell what they do.
#include <algorithm>
#include <cmath>

#include "support/catch.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::count;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

std::string set(const std::string& key, const std::string& value) { return text(" --set 'distribution.", key, "=", value, "'"); }

std::vector<double> losses(const SmallRun& run, const std::string& output) {
  std::vector<double> out;
  const std::string metrics = run.metrics(output);
  for (size_t at = metrics.find("train_loss="); at != std::string::npos; at = metrics.find("train_loss=", at + 1))
    out.push_back(std::stod(metrics.substr(at + 11)));
  return out;
}

// The hash of all parameters that a resumed run prints.
std::string resumed_hash(const std::string& output) {
  const size_t at = output.find("parameters ", output.find("resumed step"));
  return at == std::string::npos ? "" : output.substr(at + 11, 16);
}

struct Way {
  std::string name;
  int ranks = 1;
  std::string arguments;
};

}  // namespace

TEST_CASE("every method, stage and grid trains to the same losses") {
  const SmallRun run;
  REQUIRE(run.train(1, "reference").exit_code == 0);
  const std::vector<double> expected = losses(run, "reference");
  REQUIRE(expected.size() == 12);
  const std::vector<Way> ways = {
      {"gather", 2, set("method", "gather")},
      {"replicated", 2, set("method", "replicated")},
      {"stage1", 2, set("stage", "1") + " --set training.micro_batch_size=1"},
      {"stage3", 3, set("stage", "3") + set("look_ahead", "1") + " --set training.recompute=true"},
      {"mixed", 2, set("unit_stages", R"(["blocks.0=3", "blocks.*=1"])") + set("planner", "round_robin")},
      {"nodes1", 4, set("nodes", "2") + set("stage", "1") + set("reduce", "every") + " --set training.micro_batch_size=1"},
      {"nodes3", 4, set("nodes", "2") + set("stage", "3") + set("window_units", "1")},
      {"gather4", 4, set("nodes", "2") + set("method", "gather")},
  };
  for (const Way& way : ways) {
    const Ended ended = run.train(way.ranks, way.name, way.arguments);
    INFO(way.name << "\n" << ended.output);
    REQUIRE(ended.exit_code == 0);
    const std::vector<double> found = losses(run, way.name);
    REQUIRE(found.size() == expected.size());
    for (size_t step = 0; step < found.size(); ++step) CHECK(found[step] == Approx(expected[step]).epsilon(1e-4));
  }
}

TEST_CASE("narrow wires train, a little differently") {
  const SmallRun run;
  REQUIRE(run.train(1, "reference").exit_code == 0);
  const std::string narrow = set("compute_dtype", "bfloat16") + set("gradient_dtype", "bfloat16");
  const Ended ended = run.train(2, "narrow", narrow);
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  CHECK(losses(run, "narrow").back() == Approx(losses(run, "reference").back()).epsilon(0.05));
  CHECK(run.metrics("narrow") != run.metrics("reference"));
  // The masters, not the rounded values, are saved: a resumed run is the uninterrupted one.
  CHECK(run.train(2, "parts", narrow, "DMUON_CRASH_AT=after_rename").exit_code != 0);
  REQUIRE(run.train(2, "parts", narrow + " --resume must").exit_code == 0);
  CHECK(run.tensors("parts", 12) == run.tensors("narrow", 12));
}

TEST_CASE("a checkpoint of any stage, grid, planner and method resumes under any other, bit for bit") {
  const SmallRun run;
  const std::vector<Way> ways = {
      {"plain", 1, ""},
      {"nodes3", 4,
       set("nodes", "2") + set("stage", "3") + set("planner", "milp") + set("planner_time_limit_seconds", "0.5") +
           " --set communication.start_timeout_seconds=90"},
      {"gather", 3, set("method", "gather") + set("stage", "1")},
      {"rank0", 2, set("planner", "rank0") + set("stage", "1")},
  };
  for (const Way& writer : ways) {
    const Ended written = run.train(writer.ranks, writer.name, writer.arguments + " --set training.steps=4");
    INFO(writer.name << "\n" << written.output);
    REQUIRE(written.exit_code == 0);
    std::string hash;
    for (const Way& reader : ways) {
      const Ended resumed = run.train(reader.ranks, text(writer.name, "-", reader.name),
                                      text(reader.arguments, " --set training.steps=4 --resume ", run.path(writer.name)));
      INFO(reader.name << "\n" << resumed.output);
      REQUIRE(resumed.exit_code == 0);
      const std::string found = resumed_hash(resumed.output);
      REQUIRE(found.size() == 16);
      CHECK((hash.empty() || hash == found));
      hash = found;
    }
  }
}

TEST_CASE("with and without overlap the same bits, resumed on the stored plan") {
  const SmallRun run;
  for (const std::string stage : {"1", "2", "3"}) {
    const std::string arguments = set("stage", stage) + " --set training.micro_batch_size=1";
    REQUIRE(run.train(2, "on" + stage, arguments).exit_code == 0);
    REQUIRE(run.train(2, "off" + stage, arguments + set("overlap", "false")).exit_code == 0);
    CHECK(run.metrics("on" + stage) == run.metrics("off" + stage));
    CHECK(run.tensors("on" + stage, 12) == run.tensors("off" + stage, 12));
  }
  // Reduced after every micro-batch: stages then add in one order.
  REQUIRE(run.train(2, "every", set("stage", "1") + set("reduce", "every") + " --set training.micro_batch_size=1").exit_code == 0);
  for (const char* other : {"on2", "on3"}) CHECK(run.tensors("every", 12) == run.tensors(other, 12));
  const Ended replayed = run.train(2, "on2", set("stage", "2") + " --set training.micro_batch_size=1 --set training.steps=13");
  INFO(replayed.output);
  CHECK(replayed.exit_code == 0);
  CHECK(replayed.output.find("the checkpoint's plan by") != std::string::npos);
  const Ended anew = run.train(2, "on2", set("planner", "round_robin") + " --set training.steps=14");
  INFO(anew.output);
  CHECK(anew.exit_code == 0);
  CHECK(anew.output.find("plan: made anew, the checkpoint's has another \"planner\"") != std::string::npos);
}

TEST_CASE("the trace is a timeline of all ranks with an interval for every collective") {
  const SmallRun run;
  for (const std::string stage : {"1", "3"}) {
    const std::string file = run.path("trace" + stage + ".json");
    const Ended ended = run.train(4, "run" + stage, set("nodes", "2") + set("stage", stage) + " --set training.steps=3 --trace " + file);
    INFO(ended.output);
    REQUIRE(ended.exit_code == 0);
    const Json trace = parse_json(read_file(file), file);
    std::map<int64_t, std::map<std::string, int>> reduces, gathers, phases;  // rank -> name -> count
    for (const Json& event : trace.at("traceEvents").as_array()) {
      if (event.at("ph").as_string() != "X") continue;
      CHECK(event.at("dur").as_number() >= 0.0);
      const std::string name = event.at("name").as_string();
      const int64_t rank = event.at("pid").as_integer();
      if (const Json* arguments = event.find("args")) CHECK_FALSE(arguments->find("unfinished"));
      if (event.at("cat").as_string() == "phase") ++phases[rank][name];
      if (event.at("cat").as_string() != "communication") continue;
      CHECK(event.at("args").at("bytes").as_integer() >= 0);
      if (name.find("reduce") != std::string::npos) ++reduces[rank][name];
      if (name.find("gather") != std::string::npos || name.find("publish") != std::string::npos) ++gathers[rank][name];
    }
    REQUIRE(phases.size() == 4);
    for (int64_t rank = 0; rank < 4; ++rank) {
      for (const char* phase : {"forward", "backward", "update"}) CHECK(phases[rank][phase] == 3);
      for (const char* unit : {"blocks.0", "blocks.1"}) {
        const auto of_unit = [&](std::map<std::string, int>& spans) {
          int sum = 0;
          for (const auto& [name, number] : spans) sum += name.ends_with(unit) ? number : 0;
          return sum;
        };
        CHECK(of_unit(reduces[rank]) >= 2 * 3);  // two levels, three steps
        CHECK(of_unit(gathers[rank]) >= 2 * 3);
      }
      CHECK(reduces[rank] == reduces[0]);
      CHECK(gathers[rank] == gathers[0]);
    }
  }
}

TEST_CASE("a run that fails leaves its timeline") {
  const SmallRun run;
  const std::string file = run.path("trace.json");
  const Ended ended = run.train(2, "run", "--set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0 --trace " + file);
  INFO(ended.output);
  CHECK(ended.exit_code == 3);
  int spans = 0;
  const Json trace = parse_json(read_file(file), file);
  for (const Json& event : trace.at("traceEvents").as_array()) spans += event.at("ph").as_string() == "X";
  CHECK(spans > 4);
  CHECK(run.train(2, "run2", "--trace " + run.path("no/such/folder.json")).exit_code == 5);
}

TEST_CASE("measured costs and tuning are kept between runs; files that cannot be used are ignored with one line each") {
  const SmallRun run;
  const std::string cache = run.path("cache");
  const std::string arguments =
      set("cost_model", "measured") + " --set tuning.enabled=true --set tuning.cache_directory=" + cache + " --set training.steps=2";
  const Ended first = run.train(2, "first", arguments);
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  CHECK(first.output.find("costs measured") != std::string::npos);
  // The stored plan is replayed: nothing is measured again, and its costs are still seconds.
  const Ended resumed = run.train(2, "first", arguments + " --set training.steps=3");
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  CHECK(resumed.output.find("the checkpoint's plan by greedy") != std::string::npos);
  CHECK(resumed.output.find("costs measured") != std::string::npos);
  CHECK(resumed.output.find("costs: complete updates") == std::string::npos);
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::directory_iterator(cache))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  REQUIRE(files.size() >= 1);
  const std::string content = read_file(files[0]);
  for (const std::string& damaged : {content.substr(0, content.size() / 2), std::string("{\"version\": 0}"), std::string()}) {
    for (const Path& file : files) std::ofstream(file, std::ios::binary) << damaged;
    const Ended ended = run.train(2, "again", arguments + " --resume auto");
    INFO(ended.output);
    CHECK(ended.exit_code == 0);
    CHECK(count(ended.output, "the measurement cache ") == files.size());
    std::filesystem::remove_all(run.path("again"));
  }
  const Ended plain = run.train(2, "plain", "--set training.steps=2");
  REQUIRE(plain.exit_code == 0);
  CHECK(run.tensors("plain", 2) == run.tensors("first", 2));
}

TEST_CASE("planner milp: its plan, or greedy said once") {
  const SmallRun run;
  const Ended ended = run.train(2, "milp", set("planner", "milp") + " --set training.steps=2 --set communication.start_timeout_seconds=90");
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  const Json plan = parse_json(read_file(run.path("milp") + "/plan.json"), "plan");
  const bool said = !plan.at("search").at("fallback").as_string().empty();  // empty also where greedy meets the bound
  CHECK(count(ended.output, "greedy instead of milp") == (said ? 1 : 0));
  CHECK(ended.output.find("lower bound") != std::string::npos);
}

TEST_CASE("a memory bound that no plan can keep is refused with the reason") {
  const SmallRun run;
  const Ended ended = run.train(2, "tight", set("memory_limit_bytes", "1000"));
  INFO(ended.output);
  CHECK(ended.exit_code == 2);
  CHECK(ended.output.find("memory") != std::string::npos);
}

TEST_CASE("values that do not fit the job are refused by name") {
  const SmallRun run;
  const auto refused = [&](int ranks, const std::string& arguments, const std::vector<std::string>& named) {
    const Ended ended = run.train(ranks, "refused", arguments);
    INFO(ended.output);
    CHECK(ended.exit_code == 2);
    for (const std::string& part : named) CHECK(ended.output.find(part) != std::string::npos);
  };
  refused(2, set("nodes", "3"), {"distribution.nodes = 3", "2 ranks"});
  refused(3, set("replicas", "2"), {"distribution.replicas = 2", "3 ranks"});
  refused(1, set("unit_stages", "layers.*=3"), {"distribution.unit_stages.0", "layers.*=3", "blocks.0"});
  refused(1, set("stage", "4"), {"distribution.stage = 4"});
  refused(1, set("method", "gather") + set("stage", "3"), {"distribution.method", "stage 3"});
}

TEST_CASE("numbers that are not finite end runs of every method alike") {
  const SmallRun run;
  for (const std::string& way : {set("method", "gather"), set("stage", "3"), set("stage", "1")}) {
    const Ended ended = run.train(2, "nan", way + " --set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0");
    INFO(way << ended.output);
    CHECK(ended.exit_code == 3);
    CHECK(count(ended.output, "is not finite") == 1);  // all ranks decided the same, one of them says it
    std::filesystem::remove_all(run.path("nan"));
  }
}

TEST_CASE("a killed rank ends the job within ten seconds, at every stage") {
  const SmallRun run;
  for (const std::string stage : {"1", "3"}) {
    const std::string output = "killed" + stage;
    run.write("rank.sh", text("#!/bin/bash\nif [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then (for i in $(seq 600); do [ -d ", run.path(output),
                              "/checkpoints/step-00000004 ] && break; sleep 0.05; done; date +%s.%N > ", run.path("when"),
                              "; kill -KILL $$) & fi\nexec ", DMUON_TRAIN, " --config ", run.path("run.json"), " --set output=",
                              run.path(output), " --set threads=1 --set training.steps=1000000", set("stage", stage), "\n"));
    const Ended ended =
        dmuon::testing::run_command(text("bash -c '", DMUON_MPIEXEC, " --oversubscribe --bind-to none -np 3 bash ", run.path("rank.sh"),
                                         "; code=$?; date +%s.%N > ", run.path("end"), "; exit $code'"),
                                    60);
    INFO(ended.output);
    CHECK(ended.exit_code != 0);
    CHECK(ended.exit_code != 124);
    CHECK(std::stod(read_file(run.path("end"))) - std::stod(read_file(run.path("when"))) < 10.0);
  }
}
