#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dmuon/backend/stream.h"
#include "dmuon/core/error.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

// Two streams of four items each; with `ordered`, every second item waits for the first's counterpart.
std::string run_order(uint64_t seed, bool ordered) {
  DeferredScheduler scheduler(seed);
  auto a = scheduler.make_stream();
  auto b = scheduler.make_stream();
  std::string order;
  for (char i = 0; i < 4; ++i) {
    a->submit([&order, i] { order += static_cast<char>('a' + i); });
    if (ordered) b->wait(a->record());
    b->submit([&order, i] { order += static_cast<char>('A' + i); });
  }
  CHECK(order.empty());  // nothing runs before somebody waits
  a->synchronize();
  b->synchronize();
  return order;
}

}  // namespace

TEST_CASE("the deferred order depends on the seed only") {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string order = run_order(seed, false);
    CHECK(order == run_order(seed, false));
    CHECK(order.size() == 8);
    orders.insert(order);
  }
  CHECK(orders.size() > 5);
}

TEST_CASE("the deferred double keeps the order inside a stream and after events") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string order = run_order(seed, true);
    for (char i = 0; i < 4; ++i) {
      const auto lower = order.find(static_cast<char>('a' + i)), upper = order.find(static_cast<char>('A' + i));
      REQUIRE((lower != std::string::npos && upper != std::string::npos));
      CHECK(lower < upper);
      if (i > 0) CHECK(order.find(static_cast<char>('a' + i - 1)) < lower);
      if (i > 0) CHECK(order.find(static_cast<char>('A' + i - 1)) < upper);
    }
  }
}

TEST_CASE("a missing wait is caught by the deferred double") {
  const auto producer_consumer = [](uint64_t seed, bool with_wait) {
    DeferredScheduler scheduler(seed);
    auto compute = scheduler.make_stream();
    auto communication = scheduler.make_stream();
    int produced = 0, sent = -1;
    compute->submit([&] { produced = 42; });
    if (with_wait) communication->wait(compute->record());
    communication->submit([&] { sent = produced; });
    communication->synchronize();
    return sent == 42;
  };
  int wrong = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    CHECK(producer_consumer(seed, true));
    wrong += producer_consumer(seed, false) ? 0 : 1;
  }
  CHECK(wrong > 0);
}

TEST_CASE("a deferred wait runs only as far as the awaited mark needs") {
  DeferredScheduler scheduler(3);
  auto stream = scheduler.make_stream();
  int ran = 0;
  stream->submit([&] { ++ran; });
  const Event first = stream->record();
  stream->submit([&] { ++ran; });
  CHECK_FALSE(first.done());
  first.wait();
  CHECK(ran == 1);
  stream->synchronize();
  CHECK(ran == 2);
}

TEST_CASE("deferred errors drop later work and travel along waits") {
  DeferredScheduler scheduler(3);
  auto a = scheduler.make_stream();
  auto b = scheduler.make_stream();
  const Event before = a->record();
  a->submit([] { throw std::runtime_error("origin"); });
  bool ran = false;
  a->submit([&] { ran = true; });
  b->wait(a->record());
  b->submit([&] { ran = true; });
  CHECK_NOTHROW(before.wait());
  CHECK_THROWS_WITH(b->synchronize(), "origin");
  CHECK_THROWS_WITH(a->synchronize(), "origin");
  CHECK_FALSE(ran);
}

TEST_CASE("deferred streams wait for workers, and work may wait for other deferred streams") {
  DeferredScheduler scheduler(5);
  auto a = scheduler.make_stream();
  auto b = scheduler.make_stream();
  auto worker = make_worker_stream("test");
  int value = 0, seen = -1;
  worker->submit([&] { value = 1; });
  a->wait(worker->record());
  a->submit([&] { value += 1; });
  const Event added = a->record();
  b->submit([&] {
    added.wait();
    seen = value;
  });
  b->synchronize();
  CHECK(seen == 2);
}

TEST_CASE("a deferred wait that can never end is reported") {
  DeferredScheduler scheduler(5);
  auto a = scheduler.make_stream();
  a->submit([&] { a->synchronize(); });
  a->submit([] {});
  CHECK_THROWS_AS(a->synchronize(), DeviceError);

  auto b = scheduler.make_stream();
  auto c = scheduler.make_stream();
  Event later;
  b->submit([&] { c->synchronize(); });
  b->submit([] {});
  later = b->record();
  c->wait(later);
  CHECK_THROWS_AS(b->synchronize(), DeviceError);
}

TEST_CASE("destroying a deferred stream finishes its work") {
  DeferredScheduler scheduler(5);
  int ran = 0;
  {
    auto a = scheduler.make_stream();
    auto b = scheduler.make_stream();
    a->submit([&] { ++ran; });
    b->wait(a->record());
    b->submit([&] { ++ran; });
  }
  CHECK(ran == 2);
}
