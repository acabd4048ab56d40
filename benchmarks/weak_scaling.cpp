// What a training step costs more when workers are added and each keeps its batch: one row per method at the job's number of
// ranks, every one a worker.
//   scripts/virtual_cluster.sh up 8 100mbit --delay 500us
//   scripts/virtual_cluster.sh mpirun -np 8 -- dmuon_bench weak-scaling --config configs/bench_gpt_6x384.json
// More ranks than processors cannot compute at once, so what each would compute (forward, backward and the whole update, with
// Newton-Schulz, packing and applying votes) is replaced by a wait of the time that the real step takes one rank alone; only
// communication is real: the transports of dmuon/comm/vote.h on packed random messages of the model's size, and all-reduces
// of the fp32 gradients of all other parameters. Nothing overlaps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <thread>

#include "dmuon/backend/sign_segments.h"
#include "dmuon/comm/vote.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support.h"
#include "training.h"
#include "update_job.h"

namespace dmuon::bench {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A rule of the matrices and how its messages are agreed on.
struct Method {
  std::string name;  // for people
  std::string rule;  // of optimizer.matrix
  bool votes = false;
  VoteTransportKind transport = VoteTransportKind::automatic;
};

std::vector<Method> methods(const std::string& transports) {
  std::vector<Method> all;
  std::stringstream list(transports);
  for (std::string name; std::getline(list, name, ',');) {
    const VoteTransportKind transport = vote_transport_from_name(name);
    all.push_back({"Sign-Muon", "sign_muon", true, transport});
    all.push_back({"SignSGD", "signum", true, transport});
    all.push_back({"SignAdam", "sign_adam", true, transport});
  }
  all.push_back({"AdamW", "adamw"});
  return all;
}

// Seconds of a step of one rank alone, by rule. Rank 0 measures, the others wait for its answer.
std::map<std::string, double> calibrate(const Arguments& arguments, Communicator& world, const std::string& config,
                                        const std::vector<Method>& methods) {
  std::map<std::string, double> seconds;
  std::string told;
  if (world.rank() == 0) {
    const auto given = arguments.own.find("compute-ms");
    if (given != arguments.own.end()) {
      told = given->second;
    } else {
      const auto self = make_self_communicator();
      for (const Method& method : methods) {
        if (seconds.contains(method.rule)) continue;
        Training training(config, {text(R"(optimizer.matrix={"rule": ")", method.rule, "\"}")}, arguments.threads, *self);
        training.step();
        std::vector<double> steps;
        for (int i = 0; i < 3; ++i) {
          // Of one thread CPU time, so that a busy machine does not count.
          const double before = thread_seconds();
          const double elapsed = training.step(true).step();
          steps.push_back(arguments.threads == 1 ? thread_seconds() - before : elapsed);
        }
        seconds[method.rule] = spread_of(steps).median;
        told += text(told.empty() ? "" : ",", method.rule, "=", 1e3 * seconds[method.rule]);
      }
      std::fprintf(stderr, "to repeat: --compute-ms %s\n", told.c_str());
    }
  }
  std::stringstream list(world.broadcast_text(told, 0));
  for (std::string entry; std::getline(list, entry, ',');) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) throw ConfigError(text("--compute-ms takes rule=milliseconds, not \"", entry, "\""));
    const std::string rule = entry.substr(0, equals);
    seconds[rule] = 1e-3 * number_option("compute-ms " + rule, entry.substr(equals + 1), 1e-3, 1e9);
  }
  for (const Method& method : methods)
    if (!seconds.contains(method.rule)) throw ConfigError(text("--compute-ms has no time for ", method.rule));
  return seconds;
}

// What travels in a step of this model: words of one bit an element where matrices are voted on, and floats.
struct Traffic {
  int64_t matrix_elements = 0, other_elements = 0;
  int64_t vote_words = 0, header_words = 0;
};

Traffic traffic_of(const std::string& config) {
  const Configuration configuration = load_configuration(config, {});
  const ModelPlan plan = make_model(configuration, TokenData{}, models());
  const Inventory& inventory = plan.model->inventory();
  const RunRules rules = make_rules(configuration.optimizer, inventory);
  Traffic traffic;
  for (size_t p = 0; p < inventory.parameters().size(); ++p) {
    const Shape& shape = inventory.parameters()[p].shape;
    if (rules.routing.rule[p] != rules.matrix_rule) {
      traffic.other_elements += shape.elements();
      continue;
    }
    const SignSegments piece = sign_segments(shape, 0, shape.elements(), configuration.distribution.cut_elements);
    traffic.matrix_elements += piece.count;
    traffic.vote_words += sign_words(piece.count);
    traffic.header_words += sign_header_words(piece);
  }
  return traffic;
}

// One method's communication on this rank.
class Arm {
 public:
  Arm(Backend& backend, Communicator& world, const Method& method, const Traffic& traffic)
      : world_(world), stream_(make_inline_stream()), method_(method), header_words_(traffic.header_words) {
    // Zeros: sums of many steps must not overflow.
    const auto zeros = [&](int64_t elements, const char* name) {
      const Tensor tensor = backend.allocate({elements}, DType::float32, MemoryCategory::gradients, name);
      std::fill_n(tensor.data<float>(), elements, 0.0F);
      return tensor;
    };
    others_ = zeros(traffic.other_elements, "other gradients");
    if (!method.votes) {
      matrices_ = zeros(traffic.matrix_elements, "matrix gradients");
      return;
    }
    const int64_t words = traffic.header_words + traffic.vote_words;
    words_ = backend.allocate({words}, DType::int64, MemoryCategory::gradients, "votes");
    packed_ = backend.allocate({words}, DType::int64, MemoryCategory::gradients, "own votes");
    const Random random(static_cast<uint64_t>(world.rank()), RandomStream::test);
    for (int64_t i = 0; i < words; ++i) packed_.data<int64_t>()[i] = static_cast<int64_t>(random.bits(static_cast<uint64_t>(i)));
    transport_ = make_vote_transport(backend, world, method.transport, words);
  }

  // Seconds of the slowest rank from the start of a step, and of the communication alone.
  void turn(double compute_seconds, int64_t step) {
    if (words_.defined()) std::copy_n(packed_.data<int64_t>(), packed_.elements(), words_.data<int64_t>());
    const int64_t sent = bytes_sent();
    world_.barrier(*stream_);
    const auto start = Clock::now();
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(compute_seconds)));
    const auto computed = Clock::now();
    if (transport_)
      transport_->vote(*stream_, words_, header_words_, step);
    else
      world_.all_reduce(*stream_, matrices_, ReduceOperation::sum);
    const double matrices = since(computed);
    world_.all_reduce(*stream_, others_, ReduceOperation::sum);
    const double times[] = {since(start), since(computed), matrices};
    const std::vector<double> slowest = world_.all_reduce(times, ReduceOperation::maximum);
    step_seconds.push_back(slowest[0]);
    communication_seconds.push_back(slowest[1]);
    matrix_seconds.push_back(slowest[2]);
    const double bytes[] = {static_cast<double>(bytes_sent() - sent)};
    bytes_per_rank = world_.all_reduce(bytes, ReduceOperation::sum)[0] / world_.size();
  }

  double predicted_seconds(const VoteLinks& links) const {
    double seconds = predicted_all_reduce_seconds(world_.size(), others_.elements(), 4, links.all);
    if (!transport_)
      seconds += predicted_all_reduce_seconds(world_.size(), matrices_.elements(), 4, links.all);
    else
      seconds += predicted_vote_seconds(transport_->kind(), vote_size(world_, words_.elements()), links);
    return seconds;
  }
  std::string transport() const { return transport_ ? std::string(name_of(transport_->kind())) : "fp32 all-reduce"; }

  std::vector<double> step_seconds, communication_seconds, matrix_seconds;
  double bytes_per_rank = 0.0;

 private:
  // That transport votes in groups of its own.
  int64_t bytes_sent() const {
    if (!transport_ || transport_->kind() != VoteTransportKind::hierarchical) return world_.bytes_sent();
    const TrafficBytes votes = transport_->traffic();
    return world_.bytes_sent() + votes.inside + votes.between;
  }

  Communicator& world_;
  std::unique_ptr<Stream> stream_;
  Method method_;
  int64_t header_words_;
  Tensor matrices_, others_, words_, packed_;
  std::unique_ptr<VoteTransport> transport_;
};

Json::Array run_on(const Arguments& arguments, Communicator& world) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("weak-scaling needs --config FILE, e.g. configs/bench_gpt_6x384.json");
  const auto transports = arguments.own.find("transports");
  const std::vector<Method> chosen = methods(transports == arguments.own.end() ? "int8_sum,packed_scatter" : transports->second);
  const Traffic traffic = traffic_of(config->second);
  const std::map<std::string, double> compute = calibrate(arguments, world, config->second, chosen);

  const auto backend = make_backend(arguments);
  const auto stream = make_inline_stream();
  std::vector<Arm> arms;
  arms.reserve(chosen.size());
  for (const Method& method : chosen) arms.emplace_back(*backend, world, method, traffic);
  const VoteLinks links = measure_vote_links(*backend, world, *stream);

  // Methods alternate; the first turn makes connections.
  for (int turn = 0; turn <= arguments.pairs; ++turn)
    for (size_t m = 0; m < arms.size(); ++m) arms[m].turn(turn == 0 ? 0.0 : compute.at(chosen[m].rule), turn);
  if (world.rank() != 0) return {};

  const int64_t nodes = vote_size(world, 0).nodes;
  std::fprintf(
      stderr,
      "%d workers on %d %s; %s voted elements, %s others as fp32; link as measured: %s.\n"
      "Compute (forward, backward, update with Newton-Schulz, packing and applying) is a calibrated wait; communication is real and\n"
      "nothing overlaps. overhead = step / compute - 1, the step being that of the slowest worker and compute that of one alone;\n"
      "matrices is the part of communication that the matrices take, the rest the fp32 all-reduce of all others.\n",
      world.size(), static_cast<int>(nodes), nodes == 1 ? "node" : "nodes", format_count(traffic.matrix_elements).c_str(),
      format_count(traffic.other_elements).c_str(), link_text(links.all).c_str());
  Json::Array rows;
  for (size_t m = 0; m < arms.size(); ++m) {
    const auto median = [](std::vector<double> all) {
      all.erase(all.begin());
      return spread_of(std::move(all)).median;
    };
    const double alone = compute.at(chosen[m].rule), step = median(arms[m].step_seconds);
    const double predicted = arms[m].predicted_seconds(links);
    Json row = Json::object();
    row.set("workers", world.size());
    row.set("method", chosen[m].name);
    row.set("transport", arms[m].transport());
    row.set("compute_ms", 1e3 * alone);
    row.set("step_ms", 1e3 * step);
    row.set("communication_ms", 1e3 * median(arms[m].communication_seconds));
    row.set("matrices_ms", 1e3 * median(arms[m].matrix_seconds));
    row.set("overhead", step / alone - 1.0);
    row.set("predicted_communication_ms", 1e3 * predicted);
    row.set("predicted_overhead", predicted / alone);
    row.set("megabytes_per_rank", 1e-6 * arms[m].bytes_per_rank);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json::Array run(const Arguments& arguments) {
  return run_job([&](World& job) { return run_on(arguments, job.communicator()); });
}

}  // namespace

Benchmark weak_scaling_benchmark() {
  return {"weak-scaling",
          "What more workers cost a step by method and vote transport, compute replaced by calibrated waits; under mpirun",
          {{"config", "Configuration of the model"},
           {"transports", "Vote transports, separated by commas (int8_sum,packed_scatter)"},
           {"compute-ms", "Milliseconds that a step computes, as rule=milliseconds,...; without it rank 0 measures them"}},
          run};
}

}  // namespace dmuon::bench
