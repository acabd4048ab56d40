#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "dmuon/backend/stream.h"
#include "support/catch.h"

using namespace dmuon;

namespace {
void short_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
}  // namespace

TEST_CASE("an inline stream runs work before submit returns and hands its error to the caller") {
  auto stream = make_inline_stream();
  CHECK(stream->runs_inline());
  int ran = 0;
  stream->submit([&] { ++ran; });
  CHECK(ran == 1);
  CHECK_THROWS_WITH(stream->submit([] { throw std::runtime_error("kernel"); }), "kernel");
  stream->submit([&] { ++ran; });
  CHECK(ran == 2);
  CHECK(stream->record().done());
  CHECK_NOTHROW(stream->synchronize());
}

TEST_CASE("a default event has always happened") {
  Event event;
  CHECK(event.done());
  CHECK_NOTHROW(event.wait());
  auto worker = make_worker_stream("test");
  worker->wait(event);
  CHECK_NOTHROW(worker->synchronize());
}

TEST_CASE("a worker runs work in order on one thread that is not the caller's") {
  auto stream = make_worker_stream("a name that is longer than fifteen characters");
  CHECK_FALSE(stream->runs_inline());
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 200; ++i)
    stream->submit([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  stream->synchronize();
  REQUIRE(order.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  for (auto id : threads) CHECK((id == threads[0] && id != std::this_thread::get_id()));
}

TEST_CASE("an event of a worker is done exactly when the work before it is") {
  auto stream = make_worker_stream("test");
  std::atomic<bool> release = false;
  const Event before = stream->record();
  stream->submit([&] {
    while (!release) short_sleep();
  });
  const Event after = stream->record();
  CHECK(before.done());
  CHECK_FALSE(after.done());
  release = true;
  after.wait();
  CHECK(after.done());
}

TEST_CASE("a worker's error drops later work and reaches every later wait, none earlier") {
  auto stream = make_worker_stream("test");
  std::atomic<int> ran = 0;
  stream->submit([&] { ++ran; });
  const Event before = stream->record();
  stream->submit([] { throw std::runtime_error("first"); });
  stream->submit([] { throw std::runtime_error("second"); });
  stream->submit([&] { ++ran; });
  const Event after = stream->record();
  CHECK_NOTHROW(before.wait());
  CHECK_THROWS_WITH(after.wait(), "first");
  CHECK(after.done());
  CHECK_THROWS_WITH(stream->synchronize(), "first");
  CHECK_THROWS_WITH(stream->synchronize(), "first");
  CHECK(ran == 1);
}

TEST_CASE("an error travels along waits to other streams") {
  auto first = make_worker_stream("first");
  auto second = make_worker_stream("second");
  auto inline_stream = make_inline_stream();
  first->submit([] { throw std::runtime_error("origin"); });
  bool ran = false;
  const Event failed = first->record();
  second->wait(failed);
  second->submit([&] { ran = true; });
  CHECK_THROWS_WITH(second->synchronize(), "origin");
  CHECK_FALSE(ran);
  CHECK_THROWS_WITH(inline_stream->wait(failed), "origin");
}

TEST_CASE("workers wait for each other in both directions") {
  auto first = make_worker_stream("first");
  auto second = make_worker_stream("second");
  std::vector<int> values;  // unprotected: only the waits order the accesses
  for (int i = 0; i < 100; ++i) {
    first->submit([&, i] { values.push_back(2 * i); });
    second->wait(first->record());
    second->submit([&, i] { values.push_back(2 * i + 1); });
    first->wait(second->record());
  }
  first->synchronize();
  REQUIRE(values.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(values[static_cast<size_t>(i)] == i);
}

TEST_CASE("a worker may wait for its own past") {
  auto stream = make_worker_stream("test");
  int ran = 0;
  stream->submit([&] { ++ran; });
  stream->wait(stream->record());
  stream->submit([&] { ++ran; });
  stream->synchronize();
  CHECK(ran == 2);
}

TEST_CASE("an inline stream blocks its caller until the event") {
  auto worker = make_worker_stream("test");
  auto inline_stream = make_inline_stream();
  int value = 0;
  worker->submit([&] {
    short_sleep();
    value = 1;
  });
  inline_stream->wait(worker->record());
  CHECK(value == 1);
}

TEST_CASE("destroying a worker finishes its work; its events live on") {
  Event event;
  int ran = 0;
  {
    auto worker = make_worker_stream("test");
    for (int i = 0; i < 20; ++i) worker->submit([&] { ++ran; });
    event = worker->record();
  }
  CHECK(ran == 20);
  CHECK(event.done());
  CHECK_NOTHROW(event.wait());
}

TEST_CASE("what finished work held is released before its event happens") {
  auto worker = make_worker_stream("test");
  auto held = std::make_shared<int>(1);
  worker->submit([copy = held] { short_sleep(); });
  worker->record().wait();
  CHECK(held.use_count() == 1);
}
