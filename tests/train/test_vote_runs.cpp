// Whole runs in which workers vote: what they print and record, equal bits whatever moves the votes, and their checkpoints.
#include <algorithm>
#include <set>

#include "support/catch.h"
#include "train/vote_settings.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;
using dmuon::testing::transport;
using dmuon::testing::votes;

namespace {

std::vector<Json> metrics(const SmallRun& run, const std::string& output) {
  std::ifstream file(run.path(output) + "/metrics.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(parse_json(line, "metrics line"));
  return lines;
}

// Words of one worker's message about the matrices of SmallRun: a bit an element, then a bit for every row segment and one for
// numbers that are not finite, each rounded up to 64. Segments end at rows and at multiples of distribution.cut_elements.
int64_t message_words(int64_t cut) {
  int64_t words = 0;
  for (const auto& [rows, columns] : {std::pair{24, 24}, {24, 24}, {24, 24}, {24, 24}, {96, 24}, {24, 96}}) {
    std::set<std::pair<int64_t, int64_t>> segments;
    for (int64_t i = 0; i < rows * columns; ++i) segments.insert({i / columns, i / cut});
    words += (rows * columns + 63) / 64 + (static_cast<int64_t>(segments.size()) + 1 + 63) / 64;
  }
  return 2 * words;  // layers
}

}  // namespace

TEST_CASE("a run of votes tells what its votes were like") {
  const SmallRun run;
  const Ended ended = run.train(4, "run", votes + transport("packed_scatter"));
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  const std::vector<Json> lines = metrics(run, "run");
  REQUIRE(lines.size() == 12);
  for (const Json& line : lines) {
    const double tied = line.at("vote_tie_share").as_number(), agree = line.at("vote_agreement").as_number();
    CHECK((tied > 0.0 && tied < 0.7));
    CHECK((agree > 0.5 && agree < 1.0));
    // Looking took time, and that is none of the step's.
    CHECK(line.at("vote_observe_seconds").as_number() > 0.0);
    double phases = 0.0;
    for (const char* phase : {"forward_seconds", "backward_seconds", "update_seconds"}) phases += line.at(phase).as_number();
    CHECK(line.at("update_seconds").as_number() > 0.0);
    CHECK(line.at("step_seconds").as_number() >= phases);
    CHECK(line.at("step_seconds").as_number() * line.at("tokens_per_second").as_number() == Approx(96.0));
    CHECK(line.at("vote_matrix").as_string().starts_with("blocks."));
    const double ratio = line.at("vote_operator_norm_ratio").as_number();
    CHECK((ratio > 0.5 && ratio < 6.0));
    CHECK(line.at("vote_largest_change").as_number() == Approx(0.002).epsilon(1e-3));
    CHECK(line.at("exposed_communication_seconds").as_number() >= 0.0);
    // A slice to each peer, the voted slice to each peer.
    const int64_t words = message_words(64), sent = line.at("vote_bytes_sent").as_integer();
    if (line.at("step").as_integer() > 1) CHECK(std::abs(sent - 2 * 3 * 8 * words / 4) <= 8 * 3);  // the first step opens connections
    CHECK(line.at("bytes_sent").as_integer() > sent);
  }
  CHECK(lines.back().at("train_loss").as_number() < lines.front().at("train_loss").as_number());
  for (const char* part : {"4 workers", "packed_scatter", "of all elements", "votes agree", "gradient_clip"}) {
    INFO(part);
    CHECK(ended.output.find(part) != std::string::npos);
  }
}

TEST_CASE("every transport gives the same bits, flat and counted in two levels") {
  const SmallRun run;
  const std::string same = votes + "--set distribution.nodes=2 ";
  std::map<std::string, std::string> expected;
  std::vector<int64_t> sent;
  for (const char* name : {"int8_sum", "packed_gather", "packed_scatter", "hierarchical", "auto"}) {
    const Ended ended = run.train(4, name, same + transport(name));
    INFO(name << "\n" << ended.output);
    REQUIRE(ended.exit_code == 0);
    const auto found = run.tensors(name, 12);
    if (expected.empty()) expected = found;
    CHECK(found == expected);
    sent.push_back(metrics(run, name).back().at("vote_bytes_sent").as_integer());
  }
  CHECK(sent[0] > 4 * sent[2]);
  CHECK(sent[1] > sent[2]);
  // Every worker's own momentum of every matrix.
  for (const char* worker : {"@0", "@3", "@4"})
    CHECK(std::count_if(expected.begin(), expected.end(), [&](const auto& each) { return each.first.ends_with(worker); }) ==
          (worker[1] == '4' ? 0 : 12));
}

TEST_CASE("every rule that votes trains, alone and beside others, also with everything voted on") {
  const SmallRun run;
  for (const std::string rule : {"sign_muon", "signum", "sign_adam", "lion"}) {
    const Ended ended = run.train(3, rule, text("--set optimizer.matrix.rule=", rule, " --set optimizer.matrix.learning_rate=0.002 "));
    INFO(rule << "\n" << ended.output);
    REQUIRE(ended.exit_code == 0);
    const std::vector<Json> lines = metrics(run, rule);
    CHECK(lines.back().at("train_loss").as_number() < lines.front().at("train_loss").as_number());
  }
  const Ended all = run.train(2, "all", votes + "--set optimizer.auxiliary.rule=signum --set optimizer.auxiliary.learning_rate=0.002 ");
  INFO(all.output);
  REQUIRE(all.exit_code == 0);
  const Json line = metrics(run, "all").back();
  // What remains are the agreement on the norm and a few words.
  CHECK(line.at("bytes_sent").as_integer() - line.at("vote_bytes_sent").as_integer() < 4096);
}

TEST_CASE("resumed three times equals uninterrupted, with workers alone and with workers of two shards") {
  const SmallRun run;
  for (const std::string grid : {"", "--set distribution.replicas=2 "}) {
    const std::string whole = grid.empty() ? "whole" : "whole2", parts = grid.empty() ? "parts" : "parts2";
    const Ended reference = run.train(4, whole, votes + grid);
    INFO(reference.output);
    REQUIRE(reference.exit_code == 0);
    // Killed after each of the first two saves, then while one rank writes its tensors.
    for (const char* point : {"after_rename", "after_rename", "mid_tensor_file:rank=2"})
      CHECK(run.train(4, parts, votes + grid, text("DMUON_CRASH_AT=", point)).exit_code != 0);
    const Ended last = run.train(4, parts, votes + grid + "--resume must");
    INFO(last.output);
    REQUIRE(last.exit_code == 0);
    CHECK(last.output.find("resumed step 8") != std::string::npos);
    CHECK(last.output.find("the checkpoint's plan by") != std::string::npos);
    CHECK(last.output.find("average") == std::string::npos);
    CHECK(run.tensors(parts, 12) == run.tensors(whole, 12));
    CHECK(run.tensors(parts, 8) == run.tensors(whole, 8));
    CHECK(run.metrics(parts) == run.metrics(whole));
  }
}

TEST_CASE("resumed equals uninterrupted under every kind of setting that adds state or moves it") {
  const SmallRun run;
  const std::string hybrid = votes + "--set distribution.replicas=2 ";
  struct Row {
    std::string name;
    int ranks;
    std::string settings;
  };
  const std::vector<Row> rows{
      {"narrow", 2, votes + "--set distribution.compute_dtype=bfloat16 --set distribution.gradient_dtype=bfloat16 "},
      {"moments_of_odd_workers", 3, "--set optimizer.matrix.rule=sign_adam --set optimizer.matrix.learning_rate=0.002 "},
      {"mixed_stages", 4, hybrid + "--set distribution.stage=1 --set 'distribution.unit_stages=[\"blocks.1=3\"]' "},
      {"stage_3", 4, hybrid + "--set distribution.stage=3 --set distribution.nodes=2 "}};
  for (const Row& row : rows) {
    const Ended whole = run.train(row.ranks, row.name, row.settings);
    INFO(row.name << "\n" << whole.output);
    REQUIRE(whole.exit_code == 0);
    const std::string middle = run.path(row.name) + "/checkpoints/step-00000004";
    const Ended rest = run.train(row.ranks, row.name + "_rest", row.settings + "--resume " + middle);
    INFO(rest.output);
    REQUIRE(rest.exit_code == 0);
    CHECK(rest.output.find("resumed step 4") != std::string::npos);
    CHECK(run.tensors(row.name + "_rest", 12) == run.tensors(row.name, 12));
    CHECK(run.tensors(row.name, 12) != run.tensors(row.name, 8));
  }
}

TEST_CASE("another number of workers goes on from the average, and says so; one worker's shards may be any number") {
  const SmallRun run;
  REQUIRE(run.train(4, "four", votes + "--set training.steps=4").exit_code == 0);
  const Ended fewer = run.train(2, "two", votes + "--set training.steps=8 --resume " + run.path("four"));
  INFO(fewer.output);
  REQUIRE(fewer.exit_code == 0);
  CHECK(fewer.output.find("4 have saved") != std::string::npos);
  CHECK(fewer.output.find("average") != std::string::npos);
  const std::map<std::string, std::string> two = run.tensors("two", 8);
  CHECK(std::none_of(two.begin(), two.end(), [](const auto& each) { return each.first.ends_with("@2"); }));
  const double before = metrics(run, "four").back().at("train_loss").as_number();
  CHECK(metrics(run, "two").front().at("train_loss").as_number() < before + 0.5);

  const Ended shards = run.train(4, "shards", votes + "--set distribution.replicas=2 --set training.steps=12 --resume " + run.path("two"));
  INFO(shards.output);
  REQUIRE(shards.exit_code == 0);
  CHECK(shards.output.find("average") == std::string::npos);
}

TEST_CASE("a checkpoint of votes is inspected, verified, generated from, and refused where nobody votes") {
  const SmallRun run;
  REQUIRE(run.train(2, "votes", votes + "--set training.steps=4").exit_code == 0);
  REQUIRE(run.train(2, "means", "--set training.steps=4").exit_code == 0);
  const Ended inspected = dmuon::testing::run_command(text(DMUON_CHECKPOINT, " inspect ", run.path("votes")), 30);
  INFO(inspected.output);
  CHECK(inspected.exit_code == 0);
  for (const char* part : {"workers          2", "momentum of each worker", "#momentum@0", "#momentum@1"})
    CHECK(inspected.output.find(part) != std::string::npos);
  CHECK(dmuon::testing::run_command(text(DMUON_CHECKPOINT, " verify ", run.path("votes")), 30).exit_code == 0);
  CHECK(dmuon::testing::run_command(text(DMUON_CHECKPOINT, " list ", run.path("votes")), 30).output.find("complete") != std::string::npos);
  const Ended generated =
      dmuon::testing::run_command(text(DMUON_GENERATE, " --checkpoint ", run.path("votes"), " --prompt word --tokens 8"), 30);
  INFO(generated.output);
  CHECK(generated.exit_code == 0);
  for (const auto& [from, arguments] : {std::pair<std::string, std::string>{"votes", ""}, {"means", votes}}) {
    const Ended refused = run.train(2, "other", arguments + "--set training.steps=6 --resume " + run.path(from));
    INFO(refused.output);
    CHECK(refused.exit_code == 2);
    CHECK(refused.output.find("optimizer rule") != std::string::npos);
    CHECK(refused.output.find("sign_muon") != std::string::npos);
  }
}

TEST_CASE("a dry run says what votes send, to the byte, and holds for ranks that are not there") {
  const SmallRun run;
  const Ended forced = run.train(1, "dry", votes + transport("packed_scatter") + "--dry-run --ranks 4");
  INFO(forced.output);
  REQUIRE(forced.exit_code == 0);
  CHECK(forced.output.find(text("packed_scatter ", format_count(2 * 3 * 8 * message_words(64)), " bytes")) != std::string::npos);
  const Ended left = run.train(1, "dry", votes + "--dry-run --ranks 4");
  INFO(left.output);
  for (const char* name : {"int8_sum", "packed_gather", "packed_scatter"}) CHECK(left.output.find(text(name, ' ')) != std::string::npos);
}
