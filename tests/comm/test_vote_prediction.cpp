// `dmuon_plan votes`: its numbers, and the tool as a user runs it.
#include "comm/vote/prediction.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

LinkCost link(double microseconds, double gigabytes) { return {microseconds * 1e-6, 1e-9 / gigabytes}; }

Ended votes(const std::string& arguments) { return run_command(text(DMUON_PLAN_TOOL, " votes ", arguments), 60); }

}  // namespace

TEST_CASE("the crossover of the published table") {
  struct Row {
    LinkCost between;
    double three, four, eight;
  };
  // 10GbE, 100G InfiniBand, NVLink.
  for (const Row& row :
       {Row{link(30, 1.25), .9e6, .6e6, .4e6}, Row{link(5, 12.5), 1.5e6, 1.0e6, .67e6}, Row{link(4, 200), 19e6, 13e6, 8.5e6}}) {
    const Json::Array rows = predict_votes({1'000'000, {2, 3, 4, 8}, 1, row.between, {}});
    CHECK(rows[0].find("scatter_pays_above") == nullptr);
    CHECK(rows[1].at("scatter_pays_above").as_number() == Approx(row.three).epsilon(.02));
    CHECK(rows[2].at("scatter_pays_above").as_number() == Approx(row.four).epsilon(.02));
    CHECK(rows[3].at("scatter_pays_above").as_number() == Approx(row.eight).epsilon(.02));
  }
}

TEST_CASE("the fastest transport changes where the crossover says") {
  const LinkCost ethernet = link(30, 1.25);
  const auto fastest = [&](int64_t parameters, int64_t workers) {
    return predict_votes({parameters, {workers}, 1, ethernet, {}})[0].at("fastest").as_string();
  };
  CHECK(fastest(590'000, 4) == "packed_gather");
  CHECK(fastest(610'000, 4) == "packed_scatter");
  CHECK(fastest(100'000'000, 2) == "packed_gather");
  CHECK(fastest(100'000'000, 4096) == "packed_scatter");
}

TEST_CASE("predictions of a job") {
  const Json row = predict_votes({64'000'000, {4}, 1, link(30, 1.25), {}})[0];
  CHECK(row.at("nodes").as_integer() == 4);
  CHECK(row.at("fp32").at("bytes").as_number() == 384e6);
  CHECK(row.at("fp32").at("seconds").as_number() == Approx(6 * 30e-6 + 384e6 / 1.25e9));
  CHECK(row.at("packed_scatter").at("bytes").as_number() == 12e6);
  CHECK(row.at("int8_sum").at("bytes").as_number() == 96e6);
  CHECK(row.at("times_fewer_bytes").as_number() == Approx(32));
}

TEST_CASE("the workers of a node share its link") {
  const VotePredictionRequest request{64'000'000, {8, 32}, 8, link(30, 1.25), link(4, 200)};
  const VoteLinks alone = predicted_links(request, 8);
  CHECK(alone.all.seconds_per_byte == request.inside.seconds_per_byte);
  const VoteLinks links = predicted_links(request, 32);
  CHECK(links.between.seconds_per_byte == Approx(8 / 1.25e9));
  CHECK(links.all.seconds_per_byte == Approx(24.0 / 31 * 8 / 1.25e9));
  const Json row = predict_votes(request)[1];
  CHECK(row.at("nodes").as_integer() == 4);
  CHECK(row.at("fastest").as_string() == "hierarchical");
  // 8 workers reduce and gather inside, slices of an eighth cross the shared link.
  CHECK(row.at("fp32").at("seconds").as_number() ==
        Approx(14 * 4e-6 + 2 * 7.0 / 8 * 256e6 / 200e9 + 6 * 30e-6 + 2 * 3.0 / 4 * 256e6 / 1.25e9));
  CHECK_THROWS_MATCHES(predict_votes({100, {12}, 8, {}, {}}), ConfigError,
                       Catch::Message("--workers 12 does not fill nodes of 8; choose a multiple"));
}

TEST_CASE("the tool prints the table and writes it") {
  const std::string file = (Path(build_directory()) / "votes.json").string();
  const Ended ended = votes("--parameters 10616832 --workers 4,4096 --json " + file);
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK_THAT(ended.output, Catch::Contains("10,616,832 votes; link of a node: 30 us and 1.25 GB/s") && Catch::Contains("1.8 ms *") &&
                               Catch::Contains("600,000 votes"));
  const Json written = parse_json(read_file(file), file);
  CHECK(written.at("votes").as_array().size() == 2);
  CHECK(written.at("votes").as_array()[1].at("fastest").as_string() == "packed_scatter");
}

TEST_CASE("the tool refuses what it cannot predict") {
  CHECK(votes("--parameters 0").exit_code == 2);
  CHECK(votes("--gigabits-per-second 0").exit_code == 2);
  const Ended ranks = run_command(text(DMUON_PLAN_TOOL, " --ranks 4 votes"), 60);
  CHECK(ranks.exit_code == 2);
  CHECK_THAT(ranks.output, Catch::Contains("--ranks is no option of \"dmuon_plan votes\"; the number of workers is --workers"));
  CHECK(run_command(text(DMUON_PLAN_TOOL, " --stage 2 votes"), 60).exit_code == 2);
  const Ended ended = votes("--workers 12 --workers-per-node 8");
  CHECK(ended.exit_code == 2);
  CHECK_THAT(ended.output, Catch::Contains("error: --workers 12 does not fill nodes of 8"));
}
