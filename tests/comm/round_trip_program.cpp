// Two ranks send a few bytes to and fro: prints "round trip MICROSECONDS us", the median. And a megabyte from rank 0 to rank 1:
// "megabyte MICROSECONDS us".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/world.h"

namespace {

using namespace dmuon;

double median_microseconds(int turns, const std::function<void()>& work) {
  std::vector<double> samples;
  for (int turn = 0; turn < turns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    work();
    samples.push_back(1e6 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(samples.begin(), samples.begin() + turns / 2, samples.end());
  return samples[static_cast<size_t>(turns / 2)];
}

}  // namespace

int main() {
  World world = World::start();
  Communicator& all = world.communicator();
  const auto backend = make_cpu_backend({.mode = HostMode::normal, .threads = 1});
  const auto stream = make_inline_stream();
  const Tensor data = backend->allocate({int64_t{1} << 20}, DType::uint8, MemoryCategory::workspace, "message");
  const auto there_and_back = [&](int64_t bytes) {
    all.broadcast(*stream, data.flat(0, bytes), 0);
    all.broadcast(*stream, data.flat(0, 8), 1);
  };
  for (int i = 0; i < 5; ++i) there_and_back(data.elements());  // connections are made
  const double small = median_microseconds(51, [&] { there_and_back(8); });
  const double large = median_microseconds(11, [&] { there_and_back(data.elements()); });
  if (all.rank() == 0) std::printf("round trip %.0f us, megabyte %.0f us\n", small, large);
  world.finish();
}
