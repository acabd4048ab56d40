#include "dmuon/core/memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "core/memory_accounting.h"
#include "dmuon/core/error.h"
#include "support/catch.h"

extern "C" [[gnu::weak]] int __asan_address_is_poisoned(const volatile void* address);  // null without the address sanitizer

using namespace dmuon;

namespace {

// Whether a child process survives `action`.
bool survives(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // not the test framework's report
    close(STDERR_FILENO);
    action();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

void touch(volatile char* address) { *address = 1; }

}  // namespace

TEST_CASE("every byte belongs to a category; peaks are of the sum, not the sum of peaks") {
  const auto allocator = make_host_allocator();
  {
    auto a = allocator->allocate(1000, MemoryCategory::parameters, "a");
    CHECK(a->bytes() == 1000);
    CHECK(a->category() == MemoryCategory::parameters);
    CHECK(reinterpret_cast<uintptr_t>(a->data()) % 64 == 0);
    std::memset(a->data(), 1, 1000);
  }
  auto b = allocator->allocate(600, MemoryCategory::gradients, "b");
  MemoryStatistics statistics = allocator->statistics();
  CHECK(statistics[MemoryCategory::parameters].current == 0);
  CHECK(statistics[MemoryCategory::parameters].peak == 1000);
  CHECK(statistics[MemoryCategory::gradients].current == 600);
  CHECK(statistics.total.current == 600);
  CHECK(statistics.total.peak == 1000);
  allocator->reset_peak();
  CHECK(allocator->statistics()[MemoryCategory::parameters].peak == 0);
  CHECK(allocator->statistics().total.peak == 600);
  for (int i = 0; i < static_cast<int>(MemoryCategory::count); ++i) CHECK_FALSE(name_of(static_cast<MemoryCategory>(i)).empty());
}

TEST_CASE("sizes of every kind are aligned, writable and distinct while alive") {
  const auto allocator = make_host_allocator();
  std::vector<StorageHandle> blocks;
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4095, 4097, 100'000, (2 << 20) - 1, (2 << 20) + 1, 5'000'001}) {
    blocks.push_back(allocator->allocate(bytes, MemoryCategory::workspace, "block"));
    CHECK(reinterpret_cast<uintptr_t>(blocks.back()->data()) % 64 == 0);
    std::memset(blocks.back()->data(), static_cast<int>(blocks.size()), static_cast<size_t>(bytes));
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    for (const int64_t at : {int64_t{0}, blocks[i]->bytes() - 1})
      if (blocks[i]->bytes() > 0) CHECK(static_cast<char*>(blocks[i]->data())[at] == static_cast<char>(i + 1));
}

TEST_CASE("freed blocks come back, and may outlive their allocator") {
  auto allocator = make_host_allocator();
  void* first = nullptr;
  {
    auto block = allocator->allocate(10'000, MemoryCategory::activations, "x");
    first = block->data();
  }
  auto again = allocator->allocate(9'999, MemoryCategory::gradients, "y");
  CHECK(again->data() == first);
  allocator.reset();
  std::memset(again->data(), 1, 9'999);
}

TEST_CASE("all blocks of a step wait for the next one, whatever the peak is reset to") {
  const auto allocator = make_host_allocator();
  const auto step = [&] {
    std::vector<StorageHandle> blocks;
    std::set<void*> addresses;
    for (int i = 0; i < 60; ++i) {
      blocks.push_back(allocator->allocate((1 << 20) + i * 20'000, MemoryCategory::activations, "x"));
      addresses.insert(blocks.back()->data());
    }
    return addresses;
  };
  const std::set<void*> first = step();
  allocator->reset_peak();
  CHECK(step() == first);
}

TEST_CASE("the address sanitizer sees what is touched beside a block, and in a block that is cached") {
  const bool sees = __asan_address_is_poisoned != nullptr;
  const auto allocator = make_host_allocator();
  for (const int64_t bytes : {1, 100, 4001, 5'000'001}) {
    INFO(bytes);
    const char* data = nullptr;
    for (int round = 0; round < 2; ++round) {  // the second one is cached
      const auto block = allocator->allocate(bytes, MemoryCategory::activations, "x");
      data = static_cast<const char*>(block->data());
      if (!sees) continue;
      CHECK(__asan_address_is_poisoned(data) == 0);
      CHECK(__asan_address_is_poisoned(data + bytes - 1) == 0);
      CHECK(__asan_address_is_poisoned(data + bytes) == 1);
      CHECK(__asan_address_is_poisoned(data + bytes + 8) == 1);
    }
    if (sees) CHECK(__asan_address_is_poisoned(data) == 1);
    const auto smaller = allocator->allocate(bytes / 2 + 1, MemoryCategory::activations, "x");  // another class, another end
    if (sees) CHECK(__asan_address_is_poisoned(static_cast<const char*>(smaller->data()) + bytes / 2 + 1) == 1);
  }
}

TEST_CASE("poisoned blocks are NaN in every floating type, recycled ones too") {
  HostAllocatorOptions options;
  options.poison = true;
  const auto allocator = make_host_allocator(options);
  for (int round = 0; round < 2; ++round) {
    auto block = allocator->allocate(4000, MemoryCategory::activations, "x");
    for (int i = 0; i < 1000; ++i) REQUIRE(std::isnan(static_cast<float*>(block->data())[i]));
    std::memset(block->data(), 0, 4000);
  }
}

TEST_CASE("guarded blocks are accessible only while open, and not beyond their end") {
  HostAllocatorOptions options;
  options.guarded = true;
  const auto allocator = make_host_allocator(options);
  auto block = allocator->allocate(128, MemoryCategory::activations, "x");
  auto* data = static_cast<char*>(block->data());
  CHECK_FALSE(survives([&] { touch(data); }));
  block->open();
  block->open();
  CHECK(survives([&] { touch(data + 127); }));
  CHECK_FALSE(survives([&] { touch(data + 128); }));
  CHECK(std::isnan(*reinterpret_cast<float*>(data)));
  block->close();
  CHECK(survives([&] { touch(data); }));  // opened twice, closed once
  block->close();
  CHECK_FALSE(survives([&] { touch(data); }));
}

TEST_CASE("what is written beside a guarded block of any size is found when the block closes") {
  HostAllocatorOptions options;
  options.guarded = true;
  const auto allocator = make_host_allocator(options);
  for (const int64_t bytes : {0, 1, 4, 63, 100, 4000, 4097}) {
    auto block = allocator->allocate(bytes, MemoryCategory::activations, "x");
    auto* data = static_cast<char*>(block->data());
    const auto writes = [&](int64_t at) {
      return survives([&] {
        signal(SIGABRT, SIG_DFL);
        block->open();
        if (at >= -4096) touch(data + at);
        block->close();
      });
    };
    INFO(bytes);
    CHECK(writes(INT64_MIN));
    if (bytes > 0) CHECK(writes(bytes - 1));
    CHECK_FALSE(writes(bytes));
    CHECK_FALSE(writes(bytes + 3));
    if (bytes < 4096 - 64) CHECK_FALSE(writes(-1));
  }
}

TEST_CASE("what does not fit names its purpose and shows the categories") {
  for (const bool guarded : {false, true}) {
    HostAllocatorOptions options;
    options.guarded = guarded;
    const auto allocator = make_host_allocator(options);
    auto held = allocator->allocate(1'500'000, MemoryCategory::optimizer_state, "momentum");
    for (const int64_t bytes : {int64_t{1} << 47, INT64_MAX, int64_t{-1}})
      CHECK_THROWS_WITH(allocator->allocate(bytes, MemoryCategory::activations, "logits"),
                        Catch::Contains("\"logits\"") && Catch::Contains("optimizer_state") && Catch::Contains("1.50 MB"));
    CHECK_THROWS_AS(allocator->allocate(INT64_MAX, MemoryCategory::activations, "x"), DeviceError);
    CHECK(allocator->statistics().total.current == 1'500'000);
  }
}

TEST_CASE("the counting allocator counts and gives nothing") {
  const auto allocator = make_counting_allocator();
  {
    auto block = allocator->allocate(int64_t{1} << 50, MemoryCategory::parameters, "a 7B model");
    CHECK(block->data() == nullptr);
    CHECK(allocator->statistics().total.current == int64_t{1} << 50);
  }
  CHECK(allocator->statistics().total.current == 0);
  CHECK(allocator->statistics()[MemoryCategory::parameters].peak == int64_t{1} << 50);
}

TEST_CASE("running out of memory names the remedy for what takes most, the request included") {
  const auto message = [](MemoryCategory category, int64_t bytes, const MemoryStatistics& statistics) -> std::string {
    try {
      throw_out_of_memory(bytes, category, "block", "", statistics);
    } catch (const DeviceError& error) {
      return error.what();
    }
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  MemoryStatistics statistics;
  statistics.categories[static_cast<size_t>(MemoryCategory::activations)] = {500, 500};
  statistics.categories[static_cast<size_t>(MemoryCategory::parameters)] = {400, 9000};  // what was once is no matter
  const std::string activations = message(MemoryCategory::parameters, 50, statistics);
  CHECK(contains(activations, "\"block\" (parameters)"));
  CHECK(contains(activations, "most being activations: a smaller training.micro_batch_size"));
  CHECK_FALSE(contains(activations, "distribution.stage"));
  const std::string parameters = message(MemoryCategory::parameters, 200, statistics);
  CHECK(contains(parameters, "most being parameters: distribution.stage = 3"));
  CHECK_FALSE(contains(parameters, "micro_batch"));
  CHECK(contains(message(MemoryCategory::communication, 1 << 20, statistics), "distribution.look_ahead"));
  CHECK(contains(message(MemoryCategory::optimizer_state, int64_t{1} << 62, statistics), "more ranks"));
}
