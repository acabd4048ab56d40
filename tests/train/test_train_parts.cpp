#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "comm/shared/shared_group.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/train/generator.h"
#include "models/gpt2.h"
#include "support/catch.h"
#include "train/counting_communicator.h"
#include "train/distribution.h"
#include "train/dry_run.h"
#include "train/memory_fit.h"
#include "train/metrics.h"
#include "train/run.h"
#include "train/step_clock.h"
#include "train/visible_devices.h"
#include "train/votes.h"

using namespace dmuon;

TEST_CASE("sampling: temperature 0, top-k, top-p, and frequencies") {
  const std::vector<float> logits{1.0f, 3.0f, 2.0f, -std::numeric_limits<float>::infinity()};
  GenerationOptions options;
  options.temperature = 0.0;
  CHECK(sample_token(logits, options, 0) == 1);
  options.temperature = 1.0;
  options.top_k = 1;
  for (uint64_t draw = 0; draw < 50; ++draw) CHECK(sample_token(logits, options, draw) == 1);
  options.top_k = 0;
  options.top_p = 0.5;  // the most likely token alone has 0.665
  for (uint64_t draw = 0; draw < 50; ++draw) CHECK(sample_token(logits, options, draw) == 1);
  options.top_p = 1.0;
  std::array<int, 4> counts{};
  for (uint64_t draw = 0; draw < 20000; ++draw) ++counts[static_cast<size_t>(sample_token(logits, options, draw))];
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0);
  CHECK(counts[0] == Approx(20000 * std::exp(1.0) / sum).epsilon(0.08));
  CHECK(counts[1] == Approx(20000 * std::exp(3.0) / sum).epsilon(0.04));
  CHECK(counts[3] == 0);
}

TEST_CASE("metrics: resuming drops later lines and a line cut in two; NaN stays valid JSON") {
  const Path path = std::filesystem::temp_directory_path() / ("dmuon-metrics-" + std::to_string(getpid()) + ".jsonl");
  {
    MetricsFile file(path, 0);
    for (int64_t step : {1, 2, 3, 4}) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.train_loss = step == 2 ? std::nan("") : 1.5;
      file.append(to_json(metrics));
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 5, \"tok";
  { MetricsFile file(path, 3); }
  std::ifstream in(path);
  int64_t expected = 1;
  for (std::string line; std::getline(in, line); ++expected) CHECK(parse_json(line, "line").at("step").as_integer() == expected);
  CHECK(expected == 4);
  { MetricsFile file(path, 0); }
  CHECK(std::filesystem::file_size(path) == 0);
  std::filesystem::remove(path);
}

TEST_CASE("the global batch is fixed in tokens; micro-batches follow the ranks") {
  Configuration configuration;
  configuration.model.context_length = 64;
  configuration.training.batch_tokens = 640;
  for (int ranks : {1, 2, 3, 4, 16}) {
    for (int64_t micro : {0, 1, 3, 100}) {
      configuration.training.micro_batch_size = micro;
      const StepShape shape = step_shape(configuration, ranks);
      CHECK(shape.global_batch == 10);
      CHECK(shape.micro_batch_size >= 1);
      int64_t samples = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Block mine = block(10, rank, ranks);
        CHECK(mine.first == samples);
        samples += mine.count;
        CHECK(shape.micro_batches * shape.micro_batch_size >= mine.count);
      }
      CHECK(samples == 10);
    }
  }
}

TEST_CASE("the grid follows the machine or the configuration, and divides") {
  DistributionConfiguration configuration;
  const auto grid = [&](int nodes, int replicas, int ranks, int machine_nodes) {
    configuration.nodes = nodes;
    configuration.replicas = replicas;
    const RunGrid run = make_run_grid(configuration, ranks, machine_nodes);
    return std::vector<int>{run.nodes, run.grid.replicas, run.grid.shards};
  };
  CHECK(grid(0, 0, 1, 1) == std::vector<int>{1, 1, 1});
  CHECK(grid(0, 0, 8, 2) == std::vector<int>{2, 2, 4});
  CHECK(grid(2, 0, 6, 1) == std::vector<int>{2, 2, 3});
  CHECK(grid(0, 1, 8, 2) == std::vector<int>{2, 1, 8});
  CHECK(grid(2, 4, 8, 1) == std::vector<int>{2, 4, 2});
  CHECK(grid(0, 0, 3, 2) == std::vector<int>{2, 1, 3});  // two ranks on one host, one on the other
  CHECK_THROWS_AS(grid(3, 0, 4, 1), ConfigError);
  CHECK_THROWS_AS(grid(0, 3, 4, 1), ConfigError);
  CHECK_THROWS_AS(grid(1, 0, 4, 2), ConfigError);
}

TEST_CASE("ranks that follow the nodes lie in runs; replicas that are given bind runs of votes only") {
  DistributionConfiguration configuration;
  const auto error = [&](int replicas, bool votes, const std::vector<int>& nodes) -> std::string {
    configuration.replicas = replicas;
    std::vector<RankPlace> ranks;
    for (int node : nodes) ranks.push_back({node, text("host", node)});
    try {
      const RunGrid run = make_run_grid(configuration, static_cast<int>(nodes.size()), 2, votes);
      require_runs_in_nodes(configuration, run, ranks);
      return "none";
    } catch (const ConfigError& found) {
      return found.what();
    }
  };
  const std::vector<int> by_slot{0, 0, 1, 1}, by_node{0, 1, 0, 1};
  for (bool votes : {false, true})
    for (int replicas : {0, 1, 2, 4}) CHECK(error(replicas, votes, by_slot) == "none");
  for (const std::string& straddling : {error(0, false, by_node), error(2, true, by_node)}) {
    CHECK(straddling.find("rank 1 is on host1 and rank 0 on host0") != std::string::npos);
    CHECK(straddling.find("distribution.replicas") != std::string::npos);
  }
  CHECK(error(2, true, {0, 0, 0, 1}).find("rank 3 is on host1 and rank 2 on host0") != std::string::npos);
  CHECK(error(2, false, by_node) == "none");
  CHECK(error(1, true, by_node) == "none");                                     // over all ranks, as asked
  for (int replicas : {0, 4}) CHECK(error(replicas, true, by_node) == "none");  // every rank a worker
}

TEST_CASE("stages of units: the first pattern that matches holds, one that decides nothing is refused") {
  Gpt2Settings settings;
  settings.layers = 3;
  settings.heads = 2;
  settings.width = 8;
  settings.context_length = 4;
  settings.vocabulary_size = 11;
  const Gpt2 model(settings);
  DistributionConfiguration configuration;
  configuration.stage = 2;
  configuration.unit_stages = {"blocks.1=1", "blocks.*=3"};
  const std::vector<int> stages = make_unit_stages(configuration, model.inventory());
  REQUIRE(stages.size() == model.inventory().units().size());
  for (size_t unit = 0; unit < stages.size(); ++unit) {
    const std::string& name = model.inventory().units()[unit].name;
    CHECK(stages[unit] == (name == "blocks.1" ? 1 : name.starts_with("blocks.") ? 3 : 2));
  }
  configuration.unit_stages = {"blocks.*=3", "blocks.1=1"};
  CHECK_THROWS_AS(make_unit_stages(configuration, model.inventory()), ConfigError);
}

TEST_CASE("a job that does not exist counts the memory of groups whose ranks share a node, and of no others") {
  const auto shared = std::make_shared<int64_t>(0);
  const auto all = make_counting_communicator(4, RunGrid{2, {2, 3}}, shared);
  CHECK(*shared == 0);  // on two nodes
  const auto inside = all->split(0, 0, "gradients in the node");
  CHECK(*shared == SharedGroup::bytes_per_rank(3));
  const auto between = all->split(0, 0, "gradients between nodes");
  CHECK(*shared == SharedGroup::bytes_per_rank(3));
}

TEST_CASE("a job that does not exist counts what each level of the grid would carry") {
  const RunGrid run{2, {2, 3}};
  const auto all = make_counting_communicator(4, run);  // replica 1, shard 1
  const auto backend = make_cpu_backend({.mode = HostMode::shape_only});
  const Tensor buffer = backend->allocate({60}, DType::float32, MemoryCategory::workspace, "buffer");
  const auto node = all->split(1, 1, "gradients in the node"), column = all->split(1, 1, "gradients between nodes");
  CHECK(all->size() == 6);
  CHECK(node->size() == 3);
  CHECK(node->rank() == 1);
  CHECK(column->size() == 2);
  CHECK(column->rank() == 1);
  Stream& stream = backend->compute_stream();
  const std::vector<int64_t> thirds{0, 10, 30, 60}, halves{0, 20, 60};
  node->reduce_scatter_v(stream, buffer, thirds, buffer.flat(10, 20), false);
  CHECK(node->traffic().inside == 40 * 4);
  CHECK(node->traffic().between == 0);
  column->all_gather_v(stream, buffer, halves);
  CHECK(column->traffic().inside == 0);
  CHECK(column->traffic().between == 40 * 4);
}

TEST_CASE("stage 3 gathers inside replicas more often and publishes between them as stage 2 does, predicted and counted") {
  struct Sent {
    DryRunReport counted;
    PredictedTraffic predicted;
  };
  const RunGrid run{2, {2, 2}};
  const auto sent = [&](const std::string& stage) {
    const Configuration configuration = parse_configuration(
        R"({"model": {"layers": 3, "heads": 2, "width": 64, "context_length": 8, "vocabulary_size": 61},
            "training": {"steps": 2, "batch_tokens": 128, "micro_batch_size": 1},
            "optimizer": {"matrix": {"rule": "sign_muon", "learning_rate": 0.001}, "auxiliary": {"rule": "adamw"},
                          "overrides": [{"match": "blocks.0.*", "rule": "adamw"}]},
            "distribution": {"replicas": 2, "nodes": 2, "vote_transport": "packed_scatter"}})",
        "test", {"distribution.stage=" + stage});
    DryRunReport counted = dry_run(configuration, TokenData{}, models(), run, 1);
    const ModelPlan model = make_model(configuration, TokenData{}, models());
    const PredictedTraffic predicted = predict_traffic(configuration, model.model->inventory(), run, counted.plans.mean, counted.plans.vote,
                                                       VoteTransportKind::packed_scatter);
    return Sent{std::move(counted), predicted};
  };
  const Sent two = sent("2"), three = sent("3");
  const auto elements = [](const Plan& plan, int first, int last) {  // of these slots
    int64_t sum = 0;
    for (const UnitLayout& unit : plan.units) sum += unit.cuts[static_cast<size_t>(last)] - unit.cuts[static_cast<size_t>(first)];
    return static_cast<double>(sum);
  };
  const JobPlans& plans = three.counted.plans;
  // In four micro-batches eight gathers for one; a rank sends its shard to the other one of its node, half of all on average.
  const int rank = three.counted.largest_rank, shard = run.grid.shard_of(rank);
  REQUIRE(two.counted.largest_rank == rank);
  const double own = elements(plans.mean, 2 * shard, 2 * shard + 2) + elements(plans.vote, shard, shard + 1);
  const double all = elements(plans.mean, 0, 4) + elements(plans.vote, 0, 2);
  CHECK(static_cast<double>(three.counted.sent_per_step.inside - two.counted.sent_per_step.inside) == Approx(7 * 4 * own).epsilon(1e-3));
  CHECK(three.counted.sent_per_step.between == two.counted.sent_per_step.between);
  CHECK(three.predicted.others - two.predicted.others == Approx(7 * 4 * all / 2).epsilon(1e-3));
}

TEST_CASE("a dry run that leaves equal micro-batches out counts what one of all micro-batches counts") {
  for (const std::string rule : {"muon", "sign_muon"})
    for (const int stage : {1, 2, 3})
      for (const int micro_batch : {1, 2})
        for (const std::string reduce : {"auto", "every"}) {
          // 42 sequences on four ranks: 11, 11, 10 and 10, so that the last micro-batch of some is empty or short.
          const RunGrid run{2, {2, 2}, rule == "sign_muon"};
          const Configuration configuration = parse_configuration(
              R"({"model": {"layers": 3, "heads": 2, "width": 64, "context_length": 8, "vocabulary_size": 61},
                  "training": {"steps": 2, "batch_tokens": 336},
                  "optimizer": {"matrix": {"learning_rate": 0.001}, "auxiliary": {"rule": "adamw"}},
                  "distribution": {"replicas": 2, "nodes": 2, "vote_transport": "packed_scatter"}})",
              "test",
              {text("distribution.stage=", stage), text("training.micro_batch_size=", micro_batch), "distribution.reduce=" + reduce,
               "optimizer.matrix.rule=" + rule});
          INFO(rule << ", stage " << stage << ", micro-batches of " << micro_batch << ", " << reduce);
          const DryRunReport some = dry_run(configuration, TokenData{}, models(), run, 1);
          const DryRunReport all = dry_run(configuration, TokenData{}, models(), run, 1, 1000);
          const DryRunReport longer = dry_run(configuration, TokenData{}, models(), run, 1, 5);
          for (const DryRunReport* each : {&some, &longer}) {
            CHECK(each->largest_rank == all.largest_rank);
            CHECK(each->sent_per_step.inside == all.sent_per_step.inside);
            CHECK(each->sent_per_step.between == all.sent_per_step.between);
            CHECK(each->votes_per_step.inside == all.votes_per_step.inside);
            CHECK(each->votes_per_step.between == all.votes_per_step.between);
            CHECK(each->optimizer_flops_per_step == all.optimizer_flops_per_step);
            CHECK(each->memory.total.peak == all.memory.total.peak);
            for (size_t i = 0; i < all.memory.categories.size(); ++i)
              CHECK(each->memory.categories[i].peak == all.memory.categories[i].peak);
          }
          CHECK(all.sent_per_step.inside > 0);
        }
}

TEST_CASE("every instant of a step belongs to one phase") {
  Trace trace;
  StepClock clock(&trace);
  clock.enter(StepPhase::forward);
  clock.enter(StepPhase::forward);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  clock.enter(StepPhase::update);
  clock.enter(StepPhase::other);
  CHECK(clock.seconds(StepPhase::forward) >= 0.005);
  CHECK(clock.seconds(StepPhase::backward) == 0.0);
  const std::vector<Trace::Span> spans = trace.spans();
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].name == "forward");
  CHECK(spans[1].name == "update");
  CHECK(spans[0].end == spans[1].start);
}

TEST_CASE("ranks of a host share out the GPUs they see, whatever lists a launcher gave them") {
  using Lists = std::vector<std::optional<std::string>>;
  const auto places = [](const Lists& lists, const std::vector<std::string>& hosts = {}) {
    std::vector<VisibleDevices> ranks;
    for (const auto& list : lists) ranks.push_back({hosts.empty() ? "a" : hosts[ranks.size()], list});
    return share_out_devices(ranks);
  };
  const std::optional<std::string> unset;
  CHECK(places({unset, unset, unset}) == std::vector<int>{0, 1, 2});
  CHECK(places({unset, unset, unset}, {"a", "b", "a"}) == std::vector<int>{0, 0, 1});
  CHECK(places({"4,5,6", "4,5,6", "4,5,6"}) == std::vector<int>{0, 1, 2});
  CHECK(places({"2", "3", "4"}) == std::vector<int>{0, 0, 0});
  CHECK(places({"2,3", "4,5", "6,7"}) == std::vector<int>{0, 0, 0});
  CHECK(places({"0,1", "1,0", "1, 2"}) == std::vector<int>{0, 0, 1});
  CHECK(places({"0", unset, "GPU-8a,GPU-8b", "GPU-8a,GPU-8b"}) == std::vector<int>{0, 1, 0, 1});
  // None left, and none at all.
  CHECK(places({"3", "3"}) == std::vector<int>{0, 0});
  CHECK(places({"", "-1,0", "0,,1", "0,,1"}) == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE("memory of a host is shared by its ranks, a control group's by those in it, addresses by nobody") {
  const auto rank = [](const char* host, int64_t needed, std::optional<int64_t> machine, std::optional<int64_t> group, const char* path,
                       std::optional<int64_t> process) {
    return RankMemory{host, needed, {machine, group, path, process}};
  };
  const std::optional<int64_t> none;
  CHECK(judge_memory({rank("a", 1'000'000, none, none, "", none)}).fits());  // nobody says anything
  // Two of 60 on a host of 100 do not fit, on two hosts they do; exactly all of it fits.
  const MemoryFit both =
      judge_memory({rank("a", 60, 100, none, "", none), rank("a", 50, 100, none, "", none), rank("b", 70, 100, none, "", none)});
  CHECK_FALSE(both.fits());
  CHECK((both.needed == 110 && both.available == 100 && both.ranks == 2 && both.largest_rank == 0));
  CHECK(judge_memory({rank("a", 60, 100, none, "", none), rank("b", 60, 100, none, "", none)}).fits());
  CHECK(judge_memory({rank("a", 60, 100, none, "", none), rank("a", 40, 90, none, "", none)}).fits());  // read at other moments
  CHECK_FALSE(judge_memory({rank("a", 60, 100, none, "", none), rank("a", 41, 90, none, "", none)}).fits());
  // Control groups: one for both, or one for each.
  CHECK_FALSE(judge_memory({rank("a", 30, 100, 50, "/job", none), rank("a", 30, 100, 50, "/job", none)}).fits());
  CHECK(judge_memory({rank("a", 30, 100, 50, "/one", none), rank("a", 30, 100, 50, "/two", none)}).fits());
  CHECK(judge_memory({rank("a", 30, 100, 50, "/job", none), rank("b", 30, 100, 50, "/job", none)}).fits());
  const MemoryFit addresses = judge_memory({rank("a", 30, 100, none, "", 40), rank("a", 30, 100, none, "", 20)});
  CHECK_FALSE(addresses.fits());
  CHECK((addresses.ranks == 1 && addresses.largest_rank == 1));
  const int64_t much = std::numeric_limits<int64_t>::max() - 5;
  CHECK_FALSE(judge_memory({rank("a", much, 100, none, "", none), rank("a", much, 100, none, "", none)}).fits());
}
