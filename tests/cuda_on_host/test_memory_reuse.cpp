// Memory that is freed while a stream still uses it goes to the next tensor at once; the allocator orders the streams. With
// CUDA_ON_HOST_FAIL=no_wait:1 the stand-in leaves out every wait of a stream for an event: then these scenes must go wrong, or they
// would not show that the allocator's waits are there.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

constexpr int64_t elements = 4096;

bool waits_are_left_out() {
  const char* plan = std::getenv("CUDA_ON_HOST_FAIL");
  return plan != nullptr && std::string_view(plan).find("no_wait") != std::string_view::npos;
}

// One life of memory on `first`, the next on `second`. The number of elements that the second life changed under the first.
int64_t elements_spoiled(Backend& backend, Stream& first, Stream& second) {
  const auto make = [&](std::string_view name) { return backend.allocate({elements}, DType::float32, MemoryCategory::workspace, name); };
  const Tensor kept = make("kept");
  backend.zero(first, kept);
  first.synchronize();
  const std::vector<float> ones(elements, 1.0f);
  const void* memory = nullptr;
  {
    const Tensor early = make("early");
    memory = early.raw();
    backend.copy_from_host(first, ones.data(), early);
    backend.copy(first, early, kept);
  }
  const Tensor late = make("late");
  REQUIRE(late.raw() == memory);
  backend.zero(second, late);
  second.synchronize();
  first.synchronize();
  std::vector<float> found(elements);
  backend.copy_to_host(first, kept, found.data());
  first.synchronize();
  // What the second life holds is not spoiled by the first either.
  std::vector<float> after(elements);
  backend.copy_to_host(second, late, after.data());
  second.synchronize();
  return std::count_if(found.begin(), found.end(), [](float value) { return value != 1.0f; }) +
         std::count_if(after.begin(), after.end(), [](float value) { return value != 0.0f; });
}

}  // namespace

TEST_CASE("memory that changes streams is not touched by its next life before the last one is over") {
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST);
  const auto one = backend->make_communication_stream("one"), other = backend->make_communication_stream("other");
  Stream& compute = backend->compute_stream();
  const std::vector<std::pair<std::string, std::pair<Stream*, Stream*>>> ways = {
      {"from compute", {&compute, one.get()}}, {"to compute", {one.get(), &compute}}, {"between others", {one.get(), other.get()}}};
  for (const auto& [name, streams] : ways) {
    INFO(name);
    int64_t spoiled = 0;
    for (int repetition = 0; repetition < 60; ++repetition) spoiled += elements_spoiled(*backend, *streams.first, *streams.second) > 0;
    if (waits_are_left_out())
      CHECK(spoiled > 0);
    else
      CHECK(spoiled == 0);
  }
}
