// Parts of the layer that need no peers.
#include <atomic>
#include <cmath>
#include <map>

#include "comm/deadline.h"
#include "comm/launcher.h"
#include "comm/reduction.h"
#include "comm/watchdog.h"
#include "dmuon/comm/rank_grid.h"
#include "dmuon/comm/world.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("a grid maps ranks to slots one to one") {
  for (int replicas = 1; replicas <= 4; ++replicas)
    for (int shards = 1; shards <= 5; ++shards) {
      const RankGrid grid = make_rank_grid(replicas * shards, replicas);
      CHECK(grid.shards == shards);
      std::vector<bool> seen(static_cast<size_t>(grid.ranks()));
      for (int rank = 0; rank < grid.ranks(); ++rank) {
        CHECK(grid.rank(grid.shard_of(rank), grid.replica_of(rank)) == rank);
        CHECK(grid.slot_of(rank) == grid.shard_of(rank) * replicas + grid.replica_of(rank));
        CHECK(grid.rank_of_slot(grid.slot_of(rank)) == rank);
        seen[static_cast<size_t>(grid.slot_of(rank))] = true;
      }
      CHECK(std::count(seen.begin(), seen.end(), true) == grid.ranks());
    }
  CHECK_THROWS_AS(make_rank_grid(6, 4), ConfigError);
  CHECK_THROWS_WITH(make_rank_grid(6, 4), Catch::Contains("4 replicas") && Catch::Contains("6 ranks"));
}

TEST_CASE("launchers are recognised by what they set") {
  const auto with = [](std::map<std::string, std::string> variables) {
    return find_launcher([variables](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  CHECK_FALSE(with({}).present);
  CHECK_FALSE(with({{"SLURM_NTASKS", "8"}}).present);
  CHECK_FALSE(with({{"OMPI_COMM_WORLD_SIZE", "many"}}).present);
  CHECK(with({{"OMPI_COMM_WORLD_SIZE", "4"}}).ranks == 4);
  CHECK(with({{"PMI_SIZE", "3"}}).ranks == 3);
  CHECK(with({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}}).ranks == 8);
  CHECK(with({{"PMIX_RANK", "0"}}).present);
  CHECK(with({{"PMI_SIZE", "3"}}).variable == "PMI_SIZE=3");
}

TEST_CASE("reductions add in order, wrap integers and keep NaN") {
  const float a[] = {1e8f, 1.0f};
  const float b[] = {1.0f, 2.0f};
  const float c[] = {-1e8f, 4.0f};
  float result[] = {10.0f, 10.0f};
  const void* sources[] = {a, b, c};
  reduce_in_order({DType::float32, DType::float32, ReduceOperation::sum}, sources, 2, result, false);
  CHECK(result[0] == (1e8f + 1.0f) - 1e8f);
  CHECK(result[1] == 7.0f);
  const void* reordered[] = {a, c, b};
  reduce_in_order({DType::float32, DType::float32, ReduceOperation::sum}, reordered, 2, result, true);
  CHECK(result[0] == ((1e8f + 1.0f) - 1e8f) + 1.0f);
  CHECK(result[1] == 14.0f);

  const int32_t large[] = {2147483647};
  const int32_t one[] = {1};
  int32_t wrapped[1];
  const void* integers[] = {large, one};
  reduce_in_order({DType::int32, DType::int32, ReduceOperation::sum}, integers, 1, wrapped, false);
  CHECK(wrapped[0] == -2147483647 - 1);

  const double nan[] = {std::nan(""), 1.0};
  const double two[] = {2.0, std::nan("")};
  double extreme[2];
  const void* doubles[] = {nan, two};
  for (ReduceOperation operation : {ReduceOperation::maximum, ReduceOperation::minimum}) {
    reduce_in_order({DType::float64, DType::float64, operation}, doubles, 2, extreme, false);
    CHECK(std::isnan(extreme[0]));
    CHECK(std::isnan(extreme[1]));
  }
}

TEST_CASE("the fast sums have the bits of the plain ones, in every place that receives them") {
  // Normal numbers, infinities, NaN and numbers that overflow when they are rounded.
  const auto value = [](int64_t i, int source) {
    const float special[] = {INFINITY, -INFINITY, std::nanf(""), 3.4e38f, -0.0f, 1e-42f};
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u) + static_cast<uint32_t>(source) * 40503u;
    return i % 37 == source ? special[i % 6] : static_cast<float>(mixed % 65537u) * std::exp2(static_cast<float>(mixed % 31u) - 15);
  };
  const auto bits = [](const auto& values) {
    return std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(values.data()),
                                reinterpret_cast<const uint8_t*>(values.data() + values.size()));
  };
  const auto check = [&]<class T, class R>(int sources_count, int64_t elements, bool accumulate) {
    std::vector<std::vector<T>> inputs;
    std::vector<const void*> sources;
    for (int s = 0; s < sources_count; ++s) {
      inputs.emplace_back();
      for (int64_t i = 0; i < elements; ++i) inputs.back().push_back(static_cast<T>(value(i, s)));
    }
    for (const auto& input : inputs) sources.push_back(input.data());
    std::vector<R> result, expected, first_copy(static_cast<size_t>(elements)), second_copy(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i) {
      result.push_back(static_cast<R>(value(i, 9)));
      float sum = static_cast<float>(inputs[0][static_cast<size_t>(i)]);
      for (int s = 1; s < sources_count; ++s) sum += static_cast<float>(inputs[static_cast<size_t>(s)][static_cast<size_t>(i)]);
      expected.push_back(static_cast<R>(accumulate ? static_cast<float>(result.back()) + sum : sum));
    }
    void* const copies[] = {first_copy.data(), second_copy.data()};
    reduce_in_order({DTypeOf<T>::value, DTypeOf<R>::value, ReduceOperation::sum}, sources, elements, result.data(), accumulate, copies);
    CHECK(bits(result) == bits(expected));
    CHECK(bits(first_copy) == bits(expected));
    CHECK(bits(second_copy) == bits(expected));
  };
  for (const int sources : {1, 2, 3, 8})
    for (const int64_t elements : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{1000}})
      for (const bool accumulate : {false, true}) {
        CAPTURE(sources, elements, accumulate);
        check.operator()<float, float>(sources, elements, accumulate);
        check.operator()<bfloat16, bfloat16>(sources, elements, accumulate);
        check.operator()<bfloat16, float>(sources, elements, accumulate);
      }
}

TEST_CASE("time in which a rank did not run counts against nobody") {
  const Deadline::Clock::time_point start{};
  const auto after = [&](double seconds) {
    return start + std::chrono::duration_cast<Deadline::Clock::duration>(std::chrono::duration<double>(seconds));
  };
  Deadline deadline(3, 0.25, start);
  for (int i = 1; i <= 25; ++i) CHECK(!deadline.passed(after(0.1 * i)));
  CHECK(!deadline.passed(after(1000)));  // stopped for long: its peers keep what was left of the deadline
  CHECK(deadline.waited() == Approx(2.75).margin(1e-6));
  CHECK(!deadline.passed(after(1000.2)));
  CHECK(deadline.passed(after(1000.4)));
  Deadline unlimited(0, 0.25, start);
  for (int i = 1; i <= 100; ++i) CHECK(!unlimited.passed(after(i)));
}

TEST_CASE("the watchdog reports a phase that exceeds its limit, once") {
  std::atomic<int> reports{0};
  std::mutex mutex;
  std::string line;
  WatchdogOptions options;
  options.rank = 3;
  options.host = "node7";
  options.poll_seconds = 0.01;
  options.operation = [] { return "barrier #4"; };
  options.expired = [&](const std::string& said) {
    std::lock_guard lock(mutex);
    line = said;
    ++reports;
  };
  Watchdog watchdog(options);
  for (int i = 0; i < 30; ++i) {
    watchdog.enter("step", 0.2);  // renewed in time
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  watchdog.enter("evaluation", 0);  // unlimited
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(reports == 0);
  watchdog.enter("forward", 0.05);
  for (int i = 0; i < 500 && reports == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(reports == 1);
  std::lock_guard lock(mutex);
  for (const char* part : {"rank 3", "node7", "\"forward\"", "barrier #4", "Remedy"}) CHECK_THAT(line, Catch::Contains(part));
}

TEST_CASE("without a launcher the world is this process") {
  World world = World::start();
  CHECK(world.size() == 1);
  CHECK(world.local_ranks() == 1);
  CHECK(world.hosts().size() == 1);
  CHECK_THROWS_WITH(world.communicator().agree(false, "broken", ExitCode::storage), "broken");
  world.finish();
  world.finish();
}
