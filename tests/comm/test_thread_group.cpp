// The collective matrix and the failures on ranks that are threads: what the sanitizers can watch.
#include <mutex>

#include "comm/collective_matrix.h"
#include "comm/shared/shared_storage.h"
#include "comm/thread_ranks.h"
#include "dmuon/core/text.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

// Checks of many threads, judged by the main one: Catch2's assertions are not thread-safe.
struct Collected {
  std::mutex mutex;
  int64_t checks = 0;
  std::vector<std::string> failures;
  Check check(int rank) {
    return [this, rank](bool ok, const std::string& what) {
      std::lock_guard lock(mutex);
      ++checks;
      if (!ok) failures.push_back(text("rank ", rank, ": ", what));
    };
  }
};

void require_success(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}

bool contains(const std::string& where, const std::string& what) { return where.find(what) != std::string::npos; }

Tensor floats(int64_t elements) {
  static const auto allocator = make_host_allocator();
  Tensor tensor(allocator->allocate(elements * 4, MemoryCategory::gradients, "test"), 0, Shape{elements}, DType::float32);
  std::fill_n(tensor.data<float>(), elements, 1.0f);
  return tensor;
}

}  // namespace

TEST_CASE("collectives on threads are exact for every legal behaviour of the transport") {
  struct Case {
    int ranks;
    ThreadGroupOptions options;
  };
  const std::vector<Case> cases{
      {2, {.seed = 1}},
      {3, {.seed = 2, .late_polls = 3, .buffered_bytes = 0}},
      {4, {.seed = 3, .late_polls = 5, .buffered_bytes = int64_t{1} << 30}},
      {5, {.seed = 4, .late_polls = 1}},
      {2, {.seed = 5, .shared_memory = true}},
      {5, {.seed = 6, .late_polls = 2, .shared_memory = true}},
      {4, {.seed = 7, .ranks_per_node = 2, .shared_memory = true}},
  };
  for (const Case& c : cases) {
    Collected collected;
    const auto errors = run_ranks(c.ranks, c.options, [&](Communicator& group) {
      const auto allocator = make_host_allocator({.poison = true});
      const auto stream = make_inline_stream();
      Matrix{group, *stream, *allocator, collected.check(group.rank()), {0, 1, 3, 1009}, 40001}.everything();
    });
    INFO(c.ranks << " ranks");
    require_success(errors);
    CHECK(collected.failures == std::vector<std::string>{});
    CHECK(collected.checks > 1000);
  }
}

TEST_CASE("ranks on threads share memory in place") {
  Collected collected;
  const auto errors = run_ranks(3, {.seed = 8, .shared_memory = true}, [&](Communicator& group) {
    const auto allocator = make_host_allocator();
    const auto backend = make_cpu_backend();
    const auto stream = make_inline_stream();
    Matrix matrix{group, *stream, *allocator, collected.check(group.rank()), {1, 4099, 50021}, 100003, backend.get()};
    matrix.broadcast();
    matrix.all_reduce();
    matrix.all_gather_v();
    matrix.reduce_scatter_v();
    two_groups(group, *allocator, collected.check(group.rank()));
  });
  require_success(errors);
  CHECK(collected.failures == std::vector<std::string>{});
}

TEST_CASE("a rank that does not enter shared memory is named at the deadline") {
  for (const bool staged : {false, true}) {
    const auto errors = run_ranks(3, {.deadline_seconds = 0.3, .shared_memory = true}, [&](Communicator& group) {
      const auto stream = make_worker_stream("comm");
      if (group.rank() != 2) group.all_reduce(*stream, floats(staged ? 100000 : 100), ReduceOperation::sum);
      if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      stream->synchronize();
      group.agree(true, "", ExitCode::done);
    });
    for (int rank : {0, 1}) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      INFO(error);
      CHECK(contains(error, "all_reduce #1"));
      CHECK(contains(error, "group \"world\""));
      CHECK(contains(error, "rank 2 (thread2), which has not entered"));
    }
    INFO(errors[2]);
    CHECK(contains(errors[2], "agree #1"));  // which is not what the others were in
    CHECK(contains(errors[2], "all_reduce #1"));
  }
}

TEST_CASE("many collectives of one group run at once, on streams that reach them in another order") {
  Collected collected;
  const auto errors = run_ranks(3, {.deadline_seconds = 20, .shared_memory = true}, [&](Communicator& group) {
    const auto first = make_worker_stream("first");
    const auto second = make_worker_stream("second");
    const auto allocator = make_host_allocator();
    std::vector<Tensor> tensors;
    for (int i = 0; i < 40; ++i) {
      Stream& stream = i % 3 == 0 ? *first : *second;
      if (i % 7 == group.rank()) stream.submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
      tensors.push_back(floats(i % 2 ? 100 : 60000));
      group.all_reduce(stream, tensors.back(), ReduceOperation::sum);
    }
    const double one = 1;
    collected.check(group.rank())(group.all_reduce(std::span(&one, 1), ReduceOperation::sum)[0] == 3, "control operation");
    first->synchronize();
    second->synchronize();
    for (const Tensor& tensor : tensors)
      collected.check(group.rank())(tensor.data<float>()[0] == 3 && tensor.data<float>()[tensor.elements() - 1] == 3, "sum");
  });
  require_success(errors);
  CHECK(collected.failures == std::vector<std::string>{});
}

TEST_CASE("many ranks use the ring, the chain and the dissemination barrier") {
  for (int ranks : {9, 17}) {
    Collected collected;
    const auto errors = run_ranks(ranks, {.seed = 7, .late_polls = 1}, [&](Communicator& group) {
      const auto allocator = make_host_allocator();
      const auto stream = make_inline_stream();
      Matrix matrix{group, *stream, *allocator, collected.check(group.rank()), {0, 1}, 20003};
      matrix.barrier();
      matrix.all_gather_v();
      matrix.all_to_all_v();
      // A ring with several pieces in one segment and none in the others.
      const Tensor gathered = floats(300007);
      if (group.rank() == 1)
        for (int64_t i = 0; i < gathered.elements(); ++i) gathered.data<float>()[i] = static_cast<float>(i);
      std::vector<int64_t> cuts(static_cast<size_t>(ranks) + 1, 300007);
      cuts[0] = cuts[1] = 0;
      group.all_gather_v(*stream, gathered, cuts);
      for (int64_t i : {0, 1, 262143, 262144, 262145, 300006})
        collected.check(group.rank())(gathered.data<float>()[i] == static_cast<float>(i), text("ring at ", i));
      const Tensor big = floats(200000);
      if (group.rank() == 3) std::fill_n(big.data<float>(), big.elements(), 3.5f);
      group.broadcast(*stream, big, 3);
      collected.check(group.rank())(big.data<float>()[0] == 3.5f && big.data<float>()[199999] == 3.5f, "chain");
      group.all_reduce(*stream, big, ReduceOperation::sum);
      collected.check(group.rank())(big.data<float>()[123456] == 3.5f * static_cast<float>(ranks), "all_reduce");
    });
    INFO(ranks << " ranks");
    require_success(errors);
    CHECK(collected.failures == std::vector<std::string>{});
  }
}

TEST_CASE("two groups on two worker streams each") {
  Collected collected;
  const auto errors = run_ranks(3, {.seed = 5, .late_polls = 2}, [&](Communicator& group) {
    const auto allocator = make_host_allocator();
    two_groups(group, *allocator, collected.check(group.rank()));
  });
  require_success(errors);
  CHECK(collected.failures == std::vector<std::string>{});
}

TEST_CASE("a rank that never answers is named by all others at the deadline, and the group stays failed") {
  std::mutex mutex;
  std::vector<std::string> second(3);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(4, {.silent_rank = 2, .deadline_seconds = 0.3}, [&](Communicator& group) {
    if (group.rank() == 2) return;
    const auto stream = make_worker_stream("comm");
    const Tensor data = floats(100);
    group.all_reduce(*stream, data, ReduceOperation::sum);
    std::string first;
    try {
      stream->record().wait();
    } catch (const CommunicationError& error) {
      first = error.what();
    }
    try {
      group.agree(true, "", ExitCode::done);
    } catch (const CommunicationError& error) {
      std::lock_guard lock(mutex);
      second[static_cast<size_t>(group.rank() == 3 ? 2 : group.rank())] = error.what() == first ? "same" : "another";
    }
    throw CommunicationError(first);
  });
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 5);
  CHECK(second == std::vector<std::string>{"same", "same", "same"});
  int expired = 0;
  for (int rank : {0, 1, 3}) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    INFO(error);
    CHECK(contains(error, "all_reduce #1"));
    CHECK(contains(error, "group \"world\""));
    CHECK(contains(error, "rank 2 (thread2), which has not entered"));
    expired += contains(error, "No sign of life from rank 2 (thread2). Remedy");
  }
  CHECK(expired >= 1);  // the others learned of it by a notice
}

TEST_CASE("messages name ranks by their rank in the world and say what the operation is for") {
  // Of six ranks the last three, reversed, then the last two of these: ranks 4 and 3 of the world.
  const bool shared_memory = GENERATE(false, true);
  CAPTURE(shared_memory);
  const auto run = [&](const std::function<void(Communicator&, Communicator&)>& body) {
    auto errors = run_ranks(6, {.deadline_seconds = 20, .shared_memory = shared_memory}, [&](Communicator& world) {
      const auto half = world.split(world.rank() / 3, -world.rank(), "half");
      const auto pair = half->split(half->rank() > 0, half->rank(), "pair");
      pair->set_deadline(0.3);
      if (world.rank() == 3 || world.rank() == 4) body(world, *pair);
    });
    for (size_t rank : {0u, 1u, 2u, 5u}) CHECK(errors[rank] == "");
    return std::pair(errors[3], errors[4]);
  };
  const auto stream = make_inline_stream();
  const auto expired = run([&](Communicator& world, Communicator& pair) {
    if (world.rank() == 3) return std::this_thread::sleep_for(std::chrono::milliseconds(700));
    pair.describe_next("gradients of blocks.3");
    pair.reduce_scatter_v(*stream, floats(1000), std::vector<int64_t>{0, 500, 1000}, floats(500), false);
  });
  INFO(expired.second);
  CHECK(contains(expired.second, "(gradients of blocks.3) of 1,000 float32"));
  CHECK(contains(expired.second, "on rank 4 (thread4) did not finish"));
  CHECK(contains(expired.second, "waiting for rank 3 (thread3), which has not entered. No sign of life from rank 3 (thread3). Remedy"));

  const auto mismatch = run([&](Communicator& world, Communicator& pair) {
    pair.describe_next("first");
    pair.barrier(*stream);
    if (world.rank() == 3) return pair.broadcast(*stream, floats(10), 1);
    pair.barrier(*stream);
  });
  {
    INFO(mismatch.second);  // the sender of a short broadcast by messages may have returned
    CHECK(contains(mismatch.second, " of 10 float32 from rank 3"));
    CHECK(contains(mismatch.second, "rank 3 (thread3)"));
    CHECK(contains(mismatch.second, "rank 4 (thread4)"));
    CHECK_FALSE(contains(mismatch.second, "first"));  // described the operation before
  }
  const auto disagreed = run([&](Communicator& world, Communicator& pair) { pair.agree(world.rank() == 4, "full", ExitCode::storage); });
  CHECK(disagreed == std::pair<std::string, std::string>("rank 3 (thread3): full", "rank 3 (thread3): full"));
  const auto lengths = run([&](Communicator& world, Communicator& pair) {
    const std::vector<int64_t> cuts = world.rank() == 4 ? std::vector<int64_t>{0, 5, 10} : std::vector<int64_t>{0, 6, 11};
    pair.all_to_all_v(*stream, floats(cuts[2]), cuts, floats(cuts[2]), cuts);
  });
  const std::string either = lengths.first + lengths.second;
  INFO(either);
  const bool found_by_4 = contains(either, "rank 3 (thread3) sends 24 bytes to rank 4 (thread4), which expects 20");
  const bool found_by_3 = contains(either, "rank 4 (thread4) sends 20 bytes to rank 3 (thread3), which expects 24");
  CHECK((found_by_3 || found_by_4));
}

TEST_CASE("memory of a group keeps what the test doubles of the backend promise") {
  const auto errors = run_ranks(2, {.deadline_seconds = 20, .shared_memory = true}, [&](Communicator& group) {
    const auto ask = [&](HostMode mode) {
      std::shared_ptr<Backend> backend = make_cpu_backend({.mode = mode});
      return std::pair(backend, group.allocate(*backend, {1000}, DType::float32, MemoryCategory::gradients, "test"));
    };
    const auto poisoned = ask(HostMode::deferred);
    const auto poison = reinterpret_cast<const uint32_t*>(poisoned.second.data<float>());
    const bool shared = segment_of(poisoned.second) != nullptr;
    const bool filled = std::all_of(poison, poison + 1000, [](uint32_t word) { return word == 0xffffffffu; });
    // Guarded on one rank only: nobody shares.
    const auto guarded = ask(group.rank() == 1 ? HostMode::guarded : HostMode::normal);
    group.agree(shared, "memory in deferred mode is not shared", ExitCode::storage);
    group.agree(filled, "memory in deferred mode is not poisoned", ExitCode::storage);
    group.agree(segment_of(guarded.second) == nullptr, "guarded memory is shared", ExitCode::storage);
    // It works all the same.
    const auto stream = make_inline_stream();
    guarded.second.storage()->open();
    std::fill_n(guarded.second.data<float>(), 1000, 1.0f);
    guarded.second.storage()->close();
    group.all_reduce(*stream, guarded.second, ReduceOperation::sum);
    guarded.second.storage()->open();
    const bool summed = guarded.second.data<float>()[999] == 2;
    guarded.second.storage()->close();
    group.agree(summed, "a wrong sum", ExitCode::storage);
  });
  require_success(errors);
}

TEST_CASE("a late rank is waited for without a deadline") {
  const auto errors = run_ranks(2, {.deadline_seconds = 0}, [&](Communicator& group) {
    const auto stream = make_inline_stream();
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    group.barrier(*stream);
    group.set_deadline(0.05);
    if (group.rank() == 0) group.barrier(*stream);
  });
  CHECK(contains(errors[0], "barrier #2"));
  CHECK(errors[1] == "");
}

TEST_CASE("ranks in different collectives get an error that names both") {
  const bool shared_memory = GENERATE(false, true);
  CAPTURE(shared_memory);
  const auto stream = make_inline_stream();
  const auto run = [&](const std::function<void(Communicator&)>& zero, const std::function<void(Communicator&)>& one) {
    return run_ranks(2, {.deadline_seconds = 5, .shared_memory = shared_memory},
                     [&](Communicator& group) { group.rank() == 0 ? zero(group) : one(group); });
  };
  const std::vector<int64_t> half{0, 50, 100};
  const std::vector<int64_t> uneven{0, 51, 100};
  const auto check = [](const std::vector<std::string>& errors, const std::string& first, const std::string& second) {
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(contains(error, first));
      CHECK(contains(error, second));
      CHECK(contains(error, "rank 0 (thread0)"));
      CHECK(contains(error, "rank 1 (thread1)"));
    }
  };
  check(
      run([&](Communicator& g) { g.barrier(*stream); }, [&](Communicator& g) { g.all_reduce(*stream, floats(10), ReduceOperation::sum); }),
      "barrier #1", "all_reduce #1 (sum) of 10 float32");
  check(run([&](Communicator& g) { g.all_gather_v(*stream, floats(100), half); },
            [&](Communicator& g) { g.all_gather_v(*stream, floats(100), uneven); }),
        "entered different collectives", "all_gather_v #1 of 100 float32");
  check(run([&](Communicator& g) { g.reduce_scatter_v(*stream, floats(100), half, floats(50), true); },
            [&](Communicator& g) { g.all_gather_v(*stream, floats(100), half); }),
        "reduce_scatter_v #1", "all_gather_v #1");
  check(run([&](Communicator& g) { g.all_reduce(*stream, floats(10), ReduceOperation::sum); },
            [&](Communicator& g) { g.all_reduce(*stream, floats(10), ReduceOperation::maximum); }),
        "(sum)", "(maximum)");
  check(run([&](Communicator& g) { g.agree(true, "", ExitCode::done); }, [&](Communicator& g) { g.all_gather_text("x"); }), "agree #1",
        "all_gather_text #1");
  if (shared_memory) {
    const auto backend = make_cpu_backend();
    const auto ask = [&](int64_t elements) {
      return [&, elements](Communicator& g) { g.allocate(*backend, {elements}, DType::float32, MemoryCategory::gradients, "test"); };
    };
    check(run(ask(10), ask(11)), "allocate #1 of 10 float32", "allocate #1 of 11 float32");
  }
  // Rank 1 skipped an operation: the numbers still agree, the operations do not.
  check(run(
            [&](Communicator& g) {
              g.barrier(*stream);
              g.all_gather_text("x");
            },
            [&](Communicator& g) { g.all_gather_text("x"); }),
        "barrier #1", "all_gather_text #1");
  check(run([&](Communicator& g) { g.all_to_all_v(*stream, floats(100), half, floats(100), half); },
            [&](Communicator& g) {
              g.all_to_all_v(*stream, floats(100), uneven, floats(101), std::vector<int64_t>{0, 52, 101});
            }),
        "all_to_all_v #1", "expects");
}

TEST_CASE("a failure reaches ranks that wait, long before their deadline") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(3, {.silent_rank = -1, .deadline_seconds = 30}, [&](Communicator& group) {
    const auto stream = make_inline_stream();
    if (group.rank() == 2) return group.broadcast(*stream, floats(10), 2);
    if (group.rank() == 1) return group.barrier(*stream);
    group.all_gather_text("x");
  });
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 5);
  CHECK(errors[0] != "");
  CHECK(errors[1] != "");
}
