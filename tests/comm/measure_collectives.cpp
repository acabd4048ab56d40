// Our collectives against MPI's own blocking ones, alternating, 16 MiB of float32 (or argv[1] MiB). Not a test: build
// with `ninja measure_collectives` and start under mpirun.
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "dmuon/comm/world.h"

using namespace dmuon;

int main(int argc, char** argv) {
  World world = World::start();
  Communicator& all = world.communicator();
  const int64_t elements = int64_t{argc > 1 ? std::atoi(argv[1]) : 16} << 18;
  const int pairs = argc > 2 ? std::atoi(argv[2]) : 31;
  const auto allocator = make_host_allocator();
  const auto storage = [&](const char* name) {
    Tensor tensor(allocator->allocate(elements * 4, MemoryCategory::gradients, name), 0, Shape{elements}, DType::float32);
    for (int64_t i = 0; i < elements; ++i) tensor.data<float>()[i] = static_cast<float>(i % 1000 + all.rank());
    return tensor;
  };
  const Tensor data = storage("data");
  const Tensor other = storage("other");
  std::vector<int64_t> cuts;
  std::vector<int> counts;
  std::vector<int> offsets;
  for (int r = 0; r <= all.size(); ++r) cuts.push_back(elements * r / all.size());
  for (int r = 0; r < all.size(); ++r) {
    offsets.push_back(static_cast<int>(cuts[static_cast<size_t>(r)]));
    counts.push_back(static_cast<int>(cuts[static_cast<size_t>(r) + 1]) - offsets.back());
  }
  const Tensor own = data.flat(cuts[static_cast<size_t>(all.rank())], counts[static_cast<size_t>(all.rank())]);
  const auto inline_stream = make_inline_stream();
  const auto worker = make_worker_stream("comm");

  const auto time = [&](const std::function<void()>& body) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = std::chrono::steady_clock::now();
    body();
    const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest * 1e3;
  };
  const auto compare = [&](const char* name, const std::function<void()>& ours, const std::function<void()>& theirs) {
    std::vector<double> a;
    std::vector<double> b;
    std::vector<double> ratios;
    for (int i = -3; i < pairs; ++i) {
      const double first = time(ours);
      const double second = time(theirs);
      if (i < 0) continue;
      a.push_back(first);
      b.push_back(second);
      ratios.push_back(first / second);
    }
    for (auto* values : {&a, &b, &ratios}) std::sort(values->begin(), values->end());
    const size_t n = a.size();
    if (all.rank() == 0)
      std::printf("%-34s ours %8.3f ms   MPI %8.3f ms   ratio %.2f (quartiles %.2f %.2f)\n", name, a[n / 2], b[n / 2], ratios[n / 2],
                  ratios[n / 4], ratios[n * 3 / 4]);
  };

  for (Stream* stream : {inline_stream.get(), worker.get()}) {
    if (all.rank() == 0)
      std::printf("%s stream, %d ranks, %.0f MiB\n", stream == worker.get() ? "worker" : "inline", all.size(),
                  static_cast<double>(elements) / 262144);
    const auto finish = [&] { stream->record().wait(); };
    compare(
        "all_gather_v | MPI_Allgatherv",
        [&] {
          all.all_gather_v(*stream, data, cuts);
          finish();
        },
        [&] { MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, other.raw(), counts.data(), offsets.data(), MPI_FLOAT, MPI_COMM_WORLD); });
    compare(
        "reduce_scatter_v | MPI_Reduce_scatter",
        [&] {
          all.reduce_scatter_v(*stream, data, cuts, own, false);
          finish();
        },
        [&] { MPI_Reduce_scatter(MPI_IN_PLACE, other.raw(), counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    compare(
        "all_reduce | MPI_Allreduce",
        [&] {
          all.all_reduce(*stream, data, ReduceOperation::sum);
          finish();
        },
        [&] { MPI_Allreduce(MPI_IN_PLACE, other.raw(), static_cast<int>(elements), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    compare(
        "broadcast | MPI_Bcast",
        [&] {
          all.broadcast(*stream, data, 0);
          finish();
        },
        [&] { MPI_Bcast(other.raw(), static_cast<int>(elements), MPI_FLOAT, 0, MPI_COMM_WORLD); });
    const Tensor small = data.flat(0, 256);
    compare(
        "all_reduce 1 KiB | MPI_Allreduce",
        [&] {
          all.all_reduce(*stream, small, ReduceOperation::sum);
          finish();
        },
        [&] { MPI_Allreduce(MPI_IN_PLACE, other.raw(), 256, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    compare(
        "barrier | MPI_Barrier",
        [&] {
          all.barrier(*stream);
          finish();
        },
        [&] { MPI_Barrier(MPI_COMM_WORLD); });
  }
  // What waiting costs: CPU time of a rank whose peer enters a second later.
  MPI_Barrier(MPI_COMM_WORLD);
  const auto cpu_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  if (all.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  const double before = cpu_seconds();
  all.barrier(*worker);
  worker->record().wait();
  if (all.rank() == 1) std::printf("waiting 1 s for a peer costs %.1f ms of CPU time\n", 1e3 * (cpu_seconds() - before));
  world.finish();
}
