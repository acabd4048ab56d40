// How much of the communication a training step has to wait for, with and without overlap:
//   mpirun --oversubscribe -np 2 dmuon_bench overlap --config configs/bench_overlap.json
//   scripts/virtual_cluster.sh up 2 1gbit, then scripts/virtual_cluster.sh mpirun -np 2 -- dmuon_bench overlap ...
// Exposed is a step's time minus its time over a network that costs nothing (make_null_communicator); the two kinds of step
// take turns in one job. Waited is what the computing thread itself has waited, which a busy machine lengthens less. The
// trace gives a third answer: how much of the communication's intervals lies outside waits.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "support.h"
#include "training.h"

namespace dmuon::bench {
namespace {

using Interval = std::pair<Trace::Clock::time_point, Trace::Clock::time_point>;

// Sorted and without overlaps.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> out;
  for (const Interval& each : intervals) {
    if (out.empty() || each.first > out.back().second)
      out.push_back(each);
    else
      out.back().second = std::max(out.back().second, each.second);
  }
  return out;
}

double seconds_of(const std::vector<Interval>& intervals) {
  Trace::Clock::duration sum{};
  for (const Interval& each : intervals) sum += each.second - each.first;
  return std::chrono::duration<double>(sum).count();
}

double seconds_of_both(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const auto begin = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
    if (begin < end) both.push_back({begin, end});
    (a[i].second < b[j].second ? i : j)++;
  }
  return seconds_of(both);
}

// One configuration with one value of distribution.overlap, over a transport that can be silenced.
class Side {
 public:
  Side(const std::string& config, bool overlap, const Arguments& arguments, Communicator& world)
      : world_(world),
        silent_(std::make_shared<std::atomic<bool>>(false)),
        transport_(make_null_communicator(world, silent_)),
        training_(config, {text("distribution.overlap=", overlap ? "true" : "false")}, arguments.threads, *transport_, &trace_) {}

  void warm_up() {
    training_.step();
    training_.step();
    training_.sharded().wait_for_parameters();
  }

  void turn(bool silent) {
    *silent_ = silent;
    // Every timed step has a publish before it, whose bytes are on the card before they are counted.
    training_.step();
    training_.sharded().wait_for_parameters();
    synchronize();
    const double link = network_card_bytes();
    training_.step();
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    const double waited = training_.sharded().exposed_seconds();
    const TrafficBytes sent = training_.sharded().traffic();
    constexpr int steps = 2;
    for (int i = 0; i < steps; ++i) training_.step();
    const auto end = std::chrono::steady_clock::now();
    (silent ? silent_seconds : real_seconds).push_back(largest(std::chrono::duration<double>(end - start).count() / steps));
    if (!silent) {
      waited_seconds.push_back(largest((training_.sharded().exposed_seconds() - waited) / steps));
      const TrafficBytes now = training_.sharded().traffic();
      between_bytes.push_back(sum(static_cast<double>(now.between - sent.between)) / steps);
      inside_bytes.push_back(sum(static_cast<double>(now.inside - sent.inside)) / steps);
      add_spans(start, end);
    }
    training_.sharded().wait_for_parameters();
    synchronize();
    if (!silent) card_bytes.push_back((network_card_bytes() - link) / (steps + 1));
    *silent_ = false;
  }

  // What a step moves between nodes by design: every rank of a column but the owner sends its gradient, the owner its
  // values to every other one. Padding included, the agreement on the norm not.
  double formula_between() {
    const Configuration& c = training_.configuration();
    double elements = 0.0;
    for (const UnitLayout& unit : training_.sharded().plan().units) elements += static_cast<double>(unit.elements);
    const auto bytes = [](const std::string& dtype) { return dtype == "bfloat16" ? 2.0 : 4.0; };
    const double reduces = c.distribution.stage == 1 && c.distribution.reduce != "every"
                               ? 1.0
                               : static_cast<double>(step_shape(c, world_.size()).micro_batches);
    return (training_.grid().grid.replicas - 1) * elements *
           (reduces * bytes(c.distribution.gradient_dtype) + bytes(c.distribution.compute_dtype));
  }
  int nodes() { return training_.grid().nodes; }
  // Share of the communication of this rank during which it did not wait.
  double hidden_share() const {
    const std::vector<Interval> moved = merged(moved_);
    const double seconds = seconds_of(moved);
    return seconds > 0.0 ? 1.0 - seconds_of_both(moved, merged(waits_)) / seconds : 1.0;
  }

  std::vector<double> real_seconds, silent_seconds, waited_seconds, between_bytes, inside_bytes, card_bytes;

 private:
  void synchronize() {
    const double nothing[] = {0.0};
    world_.all_reduce(nothing, ReduceOperation::sum);
  }
  double largest(double mine) { return world_.all_reduce(std::span(&mine, 1), ReduceOperation::maximum)[0]; }
  double sum(double mine) { return world_.all_reduce(std::span(&mine, 1), ReduceOperation::sum)[0]; }

  void add_spans(Trace::Clock::time_point start, Trace::Clock::time_point end) {
    for (const Trace::Span& span : trace_.spans()) {
      if (span.start < start || span.end > end) continue;
      if (span.category == "communication") moved_.push_back({span.start, span.end});
      if (span.category == "wait") waits_.push_back({span.start, span.end});
    }
  }

  Communicator& world_;
  std::shared_ptr<std::atomic<bool>> silent_;
  std::unique_ptr<Communicator> transport_;
  Trace trace_;
  Training training_;
  std::vector<Interval> moved_, waits_;
};

Json::Array run_on(const Arguments& arguments, Communicator& world) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("overlap needs --config FILE, e.g. configs/bench_overlap.json");
  Side on(config->second, true, arguments, world), off(config->second, false, arguments, world);
  for (Side* side : {&on, &off}) side->warm_up();
  for (int pair = 0; pair < arguments.pairs; ++pair)
    for (Side* side : {&on, &off})
      for (bool silent : {false, true}) side->turn(silent);

  Json::Array rows;
  // Of neighbouring turns, so that a machine that slows down for a while slows both.
  const auto exposed = [](const Side& side) {
    std::vector<double> differences;
    for (size_t i = 0; i < side.real_seconds.size(); ++i) differences.push_back(side.real_seconds[i] - side.silent_seconds[i]);
    return spread_of(differences).median;
  };
  for (Side* side : {&off, &on}) {
    Json row = Json::object();
    row.set("overlap", side == &on);
    row.set("step_ms", 1e3 * spread_of(side->real_seconds).median);
    row.set("step_without_network_ms", 1e3 * spread_of(side->silent_seconds).median);
    row.set("exposed_ms", 1e3 * exposed(*side));
    row.set("exposed_to_without_overlap", exposed(*side) / exposed(off));
    row.set("waited_ms", 1e3 * spread_of(side->waited_seconds).median);
    row.set("waited_to_without_overlap", spread_of(side->waited_seconds).median / spread_of(off.waited_seconds).median);
    row.set("hidden_share_by_trace", side->hidden_share());
    row.set("inside_megabytes", 1e-6 * spread_of(side->inside_bytes).median);
    row.set("between_megabytes", 1e-6 * spread_of(side->between_bytes).median);
    row.set("between_formula_megabytes", 1e-6 * side->formula_between());
    // The formula counts both directions of all nodes.
    row.set("card_formula_megabytes", 1e-6 * side->formula_between() / side->nodes());
    row.set("card_of_rank_0_megabytes", 1e-6 * spread_of(side->card_bytes).median);
    rows.push_back(std::move(row));
  }
  return world.rank() == 0 ? rows : Json::Array{};
}

Json::Array run(const Arguments& arguments) {
  return run_job([&](World& job) { return run_on(arguments, job.communicator()); });
}

}  // namespace

Benchmark overlap_benchmark() {
  return {
      "overlap", "Exposed communication of a training step, with and without overlap; under mpirun", {{"config", "Configuration"}}, run};
}

}  // namespace dmuon::bench
