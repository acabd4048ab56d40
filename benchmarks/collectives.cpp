// Our collectives, in place and staged in shared memory and by messages, against the MPI library's own in the same run.
// The columns in_place, staged and messages run on the calling thread, as MPI's do; in_place_worker is what training
// does: a communication thread runs the operation and the calling thread waits for it, every time.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "benchmarks/mpi/collectives.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "options.h"
#include "support.h"

namespace dmuon::bench {
namespace {

struct Case {
  std::string operation;
  int64_t bytes = 0;
};

// One way to run the operation of a case.
struct Way {
  std::string name;
  std::function<void()> run;
};

// Median seconds of one call of every way: the ways alternate, and a turn takes as long as its slowest rank.
std::vector<double> measure_ways(const std::vector<Way>& ways, int turns) {
  const auto time = [](const Way& way, int64_t calls) {
    mpi::barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) way.run();
    return mpi::maximum(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()) / static_cast<double>(calls);
  };
  constexpr double turn_seconds = 0.02;
  std::vector<int64_t> calls;
  for (const Way& way : ways) {
    time(way, 2);  // pages and caches
    calls.push_back(std::clamp<int64_t>(static_cast<int64_t>(turn_seconds / mpi::maximum(time(way, 2))), 1, 5000));
  }
  std::vector<std::vector<double>> seconds(ways.size());
  for (int turn = 0; turn < turns; ++turn)
    for (size_t w = 0; w < ways.size(); ++w) seconds[w].push_back(time(ways[w], calls[w]));
  std::vector<double> medians;
  for (const auto& samples : seconds) medians.push_back(spread_of(samples).median);
  return medians;
}

// Buffers of one kind of memory and the group that the operations run in.
struct Place {
  std::string name;
  Communicator& group;
  Tensor data;
};

std::function<void()> ours(const std::string& operation, const Place& place, Stream& stream, const Tensor& data,
                           std::vector<int64_t> cuts) {
  Communicator& group = place.group;
  if (operation == "barrier") return [&] { group.barrier(stream); };
  if (operation == "broadcast") return [&, data] { group.broadcast(stream, data, 0); };
  if (operation == "all_reduce") return [&, data] { group.all_reduce(stream, data, ReduceOperation::sum); };
  if (operation == "all_gather_v") return [&, data, cuts] { group.all_gather_v(stream, data, cuts); };
  const size_t rank = static_cast<size_t>(group.rank());
  return
      [&, data, cuts, own = data.flat(cuts[rank], cuts[rank + 1] - cuts[rank])] { group.reduce_scatter_v(stream, data, cuts, own, false); };
}

std::function<void()> theirs(const std::string& operation, float* data, int64_t elements, std::vector<int> counts) {
  if (operation == "barrier") return [] { mpi::barrier(); };
  if (operation == "broadcast") return [=] { mpi::broadcast(data, elements); };
  if (operation == "all_reduce") return [=] { mpi::all_reduce(data, elements); };
  if (operation == "all_gather_v") return [=] { mpi::all_gather(data, counts); };
  return [=] { mpi::reduce_scatter(data, counts); };
}

Json::Array run(const Arguments& arguments) {
  World world = World::start();
  if (world.size() == 1) throw ConfigError("collectives need several ranks: mpirun --bind-to none -np 2 dmuon_bench collectives");
  const auto backend = make_backend(arguments);
  Communicator& all = world.communicator();
  const int64_t smallest = integer_option(arguments, "smallest-kibibytes", 1, 1, int64_t{1} << 30) << 10;
  const int64_t largest = integer_option(arguments, "largest-mebibytes", 64, 1, int64_t{1} << 20) << 20;

  // Every rank a node of its own: nothing is shared.
  const auto messages = all.divide_into_nodes(all.size(), "messages");
  const Shape shape{largest / 4};
  const auto plain = [&](const char* name) { return backend->allocate(shape, DType::float32, MemoryCategory::gradients, name); };
  const std::array<Place, 3> places{
      Place{"in_place", all, all.allocate(*backend, shape, DType::float32, MemoryCategory::gradients, "shared")},
      Place{"staged", all, plain("staged")}, Place{"messages", *messages, plain("messages")}};
  const Tensor reference = plain("reference");
  // Zeros: sums of thousands of calls must not overflow, and values cost the same.
  for (const Place& place : places) std::memset(place.data.raw(), 0, static_cast<size_t>(largest));
  std::memset(reference.raw(), 0, static_cast<size_t>(largest));

  std::vector<Case> cases{{"barrier", 0}};
  for (const char* operation : {"all_reduce", "reduce_scatter_v", "all_gather_v", "broadcast"})
    for (int64_t bytes = smallest; bytes <= largest; bytes *= 4) cases.push_back({operation, bytes});

  const auto stream = make_inline_stream();
  const auto worker = backend->make_communication_stream("collectives");
  Json::Array rows;
  for (const Case& c : cases) {
    const int64_t elements = c.bytes / 4;
    std::vector<int64_t> cuts{0};
    std::vector<int> counts;
    for (int r = 1; r <= all.size(); ++r) {
      cuts.push_back(elements * r / all.size());
      counts.push_back(static_cast<int>(cuts.back() - cuts[cuts.size() - 2]));
    }
    std::vector<Way> ways;
    for (const Place& place : places) ways.push_back({place.name, ours(c.operation, place, *stream, place.data.flat(0, elements), cuts)});
    ways.push_back({"in_place_worker", [&, submit = ours(c.operation, places[0], *worker, places[0].data.flat(0, elements), cuts)] {
                      submit();
                      worker->record().wait();
                    }});
    ways.push_back({"mpi", theirs(c.operation, reference.data<float>(), elements, counts)});
    const std::vector<double> seconds = measure_ways(ways, arguments.pairs);
    if (all.rank() != 0) continue;
    Json row = Json::object();
    row.set("operation", c.operation);
    row.set("ranks", all.size());
    row.set("kibibytes", c.bytes / 1024);
    for (size_t w = 0; w < ways.size(); ++w) row.set(ways[w].name + "_microseconds", 1e6 * seconds[w]);
    for (size_t w = 0; w + 1 < ways.size(); ++w) row.set("mpi_over_" + ways[w].name, seconds.back() / seconds[w]);
    if (rows.empty()) std::fprintf(stderr, "microseconds of one call:\n");
    std::fprintf(stderr, "%-16s %8lld KiB", c.operation.c_str(), static_cast<long long>(c.bytes / 1024));  // as they come
    for (size_t w = 0; w < ways.size(); ++w) std::fprintf(stderr, "  %s %.1f", ways[w].name.c_str(), 1e6 * seconds[w]);
    std::fputc('\n', stderr);
    row.set("in_place_gigabytes_per_second", static_cast<double>(c.bytes) / seconds[0] / 1e9);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Benchmark collectives_benchmark() {
  return {"collectives",
          "Collectives in shared memory and by messages against MPI's own; start under mpirun (rank 0 reports)",
          {{"smallest-kibibytes", "Smallest buffer, in KiB (1)"}, {"largest-mebibytes", "Largest buffer, in MiB (64)"}},
          run};
}

}  // namespace dmuon::bench
