// Votes by every transport beside all-reduces of the same elements: time, bytes that were counted, and what the model of
// vote_cost.h predicts from the links measured at the start. Runs on whatever network mpirun's ranks have, so also on the
// limited links of scripts/virtual_cluster.sh.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support.h"

namespace dmuon::bench {
namespace {

constexpr double least_turn_seconds = 0.005, most_seconds = 8;  // of one way: slow networks get fewer turns

// One way to agree on all elements.
struct Way {
  std::string name;
  double predicted = 0;  // seconds
  std::function<void()> run;
  std::function<TrafficBytes()> traffic;
};

struct Measured {
  double seconds = 0;             // median of the slowest rank's
  double bytes = 0, between = 0;  // of a rank, on average
  double card = 0;                // of a node, on average: what its network card sent, with the headers of the network
};

class SignTransport {
 public:
  SignTransport(const Arguments& arguments, Communicator& group)
      : arguments_(arguments),
        group_(group),
        nodes_(vote_size(group, 0).nodes),
        backend_(make_backend(arguments)),
        stream_(make_inline_stream()),
        links_(measure_vote_links(*backend_, group, *stream_)) {}

  void describe() const {
    std::fprintf(stderr, "%d workers on %d %s; link of the group: %s", group_.size(), static_cast<int>(nodes_),
                 nodes_ == 1 ? "node" : "nodes", link_text(links_.all).c_str());
    if (nodes_ > 1 && nodes_ < group_.size())
      std::fprintf(stderr, "; inside a node: %s; between: %s", link_text(links_.inside).c_str(), link_text(links_.between).c_str());
    std::fputc('\n', stderr);
  }

  void run(int64_t votes, Json::Array& rows) {
    std::vector<Tensor> memory;
    std::vector<std::unique_ptr<VoteTransport>> transports;
    const std::vector<Way> ways = ways_of(votes, memory, transports);
    const std::vector<Measured> measured = measure(ways);
    if (group_.rank() != 0) return;
    const auto whole = [](double bytes) { return static_cast<int64_t>(std::llround(bytes)); };
    for (size_t w = 0; w < ways.size(); ++w) {
      const Measured& m = measured[w];
      Json row = Json::object();
      row.set("transport", ways[w].name);
      row.set("workers", group_.size());
      row.set("nodes", nodes_);
      row.set("votes", votes);
      row.set("milliseconds", 1e3 * m.seconds);
      row.set("predicted_milliseconds", 1e3 * ways[w].predicted);
      row.set("bytes_per_worker", whole(m.bytes));
      row.set("bytes_between_nodes_per_worker", whole(m.between));
      row.set("network_card_bytes_per_node", whole(m.card));
      row.set("times_fewer_bytes", m.bytes > 0 ? measured[0].bytes / m.bytes : 0.0);
      row.set("times_faster", measured[0].seconds / m.seconds);
      rows.push_back(std::move(row));
    }
  }

 private:
  std::vector<Way> ways_of(int64_t votes, std::vector<Tensor>& memory, std::vector<std::unique_ptr<VoteTransport>>& transports) {
    std::vector<Way> ways;
    for (const auto& [name, dtype] : {std::pair{"all_reduce fp32", DType::float32}, std::pair{"all_reduce bf16", DType::bfloat16},
                                      std::pair{"all_reduce int8", DType::int8}}) {
      memory.push_back(group_.allocate(*backend_, {votes}, dtype, MemoryCategory::gradients, name));
      backend_->zero(*stream_, memory.back());  // sums of thousands of calls must not overflow
      ways.push_back({name, predicted_all_reduce_seconds(group_.size(), votes, size_of(dtype), links_.all),
                      [this, data = memory.back()] { group_.all_reduce(*stream_, data, ReduceOperation::sum); },
                      [this] { return group_.traffic(); }});
    }
    const int64_t words = divide_up(votes, 64);
    const Tensor bits = group_.allocate(*backend_, {words}, DType::int64, MemoryCategory::gradients, "votes");
    std::fill_n(bits.data<int64_t>(), words, 0x5555'3333'0f0f'00ffll * (1 + group_.rank()));
    const VoteSize size{group_.size(), nodes_, words};
    for (const VoteTransportKind kind : possible_vote_transports(size)) {
      transports.push_back(make_vote_transport(*backend_, group_, kind, words));
      VoteTransport& transport = *transports.back();
      ways.push_back({text("vote ", name_of(kind)), predicted_vote_seconds(kind, size, links_),
                      [this, &transport, bits] { transport.vote(*stream_, bits, 0, 1); }, [&transport] { return transport.traffic(); }});
    }
    return ways;
  }

  double seconds(const Way& way, int64_t calls) {
    group_.barrier(*stream_);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) way.run();
    const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return group_.all_reduce(std::span(&mine, 1), ReduceOperation::maximum)[0] / static_cast<double>(calls);
  }

  // Bytes of one call, after one that warmed up pages and connections. A few packets of barriers are counted with it.
  Measured count_bytes(const Way& way) {
    way.run();
    const TrafficBytes before = way.traffic();
    group_.barrier(*stream_);
    const double card_before = network_card_bytes();
    group_.barrier(*stream_);
    way.run();
    stream_->synchronize();
    group_.barrier(*stream_);
    const bool first_of_node = group_.rank() == 0 || group_.node(group_.rank()) != group_.node(group_.rank() - 1);
    const double card = first_of_node ? network_card_bytes() - card_before : 0;
    const TrafficBytes after = way.traffic();
    const double mine[] = {static_cast<double>(after.inside - before.inside), static_cast<double>(after.between - before.between), card};
    const std::vector<double> all = group_.all_reduce(mine, ReduceOperation::sum);
    return {0, (all[0] + all[1]) / group_.size(), all[1] / group_.size(), all[2] / static_cast<double>(nodes_)};
  }

  // The ways alternate.
  std::vector<Measured> measure(const std::vector<Way>& ways) {
    struct Turns {
      int64_t calls, left;
      std::vector<double> samples;
    };
    std::vector<Measured> result;
    std::vector<Turns> turns;
    for (const Way& way : ways) {
      result.push_back(count_bytes(way));
      const double once = seconds(way, 1);
      const auto calls = std::clamp<int64_t>(static_cast<int64_t>(least_turn_seconds / once), 1, 1000);
      const auto most = static_cast<int64_t>(most_seconds / (once * static_cast<double>(calls)));
      turns.push_back({calls, std::clamp<int64_t>(most, 1, arguments_.pairs), {}});
    }
    for (int turn = 0; turn < arguments_.pairs; ++turn)
      for (size_t w = 0; w < ways.size(); ++w)
        if (turns[w].left-- > 0) turns[w].samples.push_back(seconds(ways[w], turns[w].calls));
    for (size_t w = 0; w < ways.size(); ++w) result[w].seconds = spread_of(turns[w].samples).median;
    return result;
  }

  const Arguments& arguments_;
  Communicator& group_;
  int64_t nodes_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  VoteLinks links_;
};

Json::Array run(const Arguments& arguments) {
  World world = World::start();
  if (world.size() == 1) throw ConfigError("votes need several workers: mpirun --bind-to none -np 2 dmuon_bench sign-transport");
  const auto option = [&](const char* name, const char* standard) {
    const auto given = arguments.own.find(name);
    return given == arguments.own.end() ? std::string(standard) : given->second;
  };
  const auto number = [](const char* name, const std::string& value) { return static_cast<int64_t>(number_option(name, value, 1, 1e11)); };
  std::unique_ptr<Communicator> divided;
  const std::string nodes_option = option("nodes", "");
  if (!nodes_option.empty())
    divided = world.communicator().divide_into_nodes(static_cast<int>(number("nodes", nodes_option)), "virtual nodes");
  Communicator& group = divided ? *divided : world.communicator();
  SignTransport benchmark(arguments, group);
  if (group.rank() == 0) benchmark.describe();
  Json::Array rows;
  std::istringstream list(option("votes", "10000,1000000,10000000"));
  for (std::string votes; std::getline(list, votes, ',');) benchmark.run(number("votes", votes), rows);
  return rows;
}

}  // namespace

Benchmark sign_transport_benchmark() {
  return {"sign-transport",
          "Votes by every transport beside all-reduces: times, counted bytes and predictions; start under mpirun (rank 0 reports)",
          {{"votes", "Elements voted on, separated by commas (10000,1000000,10000000)"},
           {"nodes", "Equal blocks of ranks that count as nodes; without, the hosts are the nodes"}},
          run};
}

}  // namespace dmuon::bench
