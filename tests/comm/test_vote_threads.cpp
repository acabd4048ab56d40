// The transports of votes among ranks that are threads: more of them, nodes as wished, and ranks that disagree.
#include <atomic>
#include <numeric>

#include "comm/reduction.h"
#include "comm/thread_ranks.h"
#include "comm/vote_matrix.h"
#include "dmuon/core/text.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

// Runs the matrix on every rank of a group of threads.
void run_matrix(int ranks, const ThreadGroupOptions& options, const std::function<void(VoteMatrix&)>& part) {
  std::vector<std::vector<std::string>> failures(static_cast<size_t>(ranks));
  const auto errors = run_ranks(ranks, options, [&](Communicator& group) {
    const auto backend = make_cpu_backend();
    const auto stream = make_inline_stream();
    auto& mine = failures[static_cast<size_t>(group.rank())];
    VoteMatrix matrix{group, *backend, *stream, [&](bool ok, const std::string& what) {
                        if (!ok) mine.push_back(what);
                      }};
    part(matrix);
  });
  for (int r = 0; r < ranks; ++r) {
    INFO("rank " << r << " of " << ranks << ", " << options.ranks_per_node << " in a node, shared memory " << options.shared_memory);
    CHECK(errors[static_cast<size_t>(r)] == "");
    CHECK_THAT(join(failures[static_cast<size_t>(r)], "\n"), Catch::Equals(""));
  }
}

}  // namespace

TEST_CASE("all transports give the majority, by messages and in shared memory") {
  const int ranks = GENERATE(2, 3, 4);
  const bool shared = GENERATE(false, true);
  run_matrix(ranks, {.seed = 1, .late_polls = 2, .shared_memory = shared}, [](VoteMatrix& m) {
    m.large = 300;
    m.everything();
  });
}

TEST_CASE("counts of nodes give the flat vote") {
  struct Layout {
    int nodes, each;
  };
  const auto layout = GENERATE(Layout{2, 2}, Layout{2, 4}, Layout{3, 2}, Layout{4, 2}, Layout{2, 3}, Layout{3, 3}, Layout{3, 1});
  run_matrix(layout.nodes * layout.each, {.ranks_per_node = layout.each, .shared_memory = true}, [](VoteMatrix& m) {
    m.sizes = {0, 1, 2, 7, 33};
    m.large = 300;
    m.results();
    m.bytes();
  });
}

TEST_CASE("sixteen workers send the bytes of the table") {
  run_matrix(16, {.ranks_per_node = GENERATE(16, 4), .shared_memory = true}, [](VoteMatrix& m) {
    m.sizes = {1, 15};
    m.large = 65;
    m.results();
    m.bytes();
  });
}

TEST_CASE("nodes of unequal size have no hierarchical vote") {
  const auto errors = run_ranks(3, {.ranks_per_node = 2}, [](Communicator& group) {
    const auto backend = make_cpu_backend();
    make_vote_transport(*backend, group, VoteTransportKind::hierarchical, 5);
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::Contains("distribution.vote_transport: hierarchical") && Catch::Contains("2 nodes, unequally") &&
                          Catch::Contains("packed_scatter"));
}

TEST_CASE("a worker with a buffer of another size is an error that names it and both sizes") {
  using enum VoteTransportKind;
  const auto kind = GENERATE(int8_sum, packed_gather, packed_scatter, hierarchical);
  const bool shared = GENERATE(false, true);
  CAPTURE(name_of(kind), shared);
  const int per_node = kind == hierarchical ? 2 : 4;
  const auto errors = run_ranks(
      4, {.deadline_seconds = kind == hierarchical ? 1.0 : 20.0, .ranks_per_node = per_node, .shared_memory = shared},
      [&](Communicator& group) {
        const auto backend = make_cpu_backend();
        const auto stream = make_inline_stream();
        const auto transport = make_vote_transport(*backend, group, kind, 1200);
        const Tensor words = backend->allocate({group.rank() == 1 ? 800 : 1200}, DType::int64, MemoryCategory::gradients, "votes");
        backend->zero(*stream, words);
        transport->vote(*stream, words, 0, 0);
        stream->record().wait();
      });
  // In bytes or elements of what is exchanged first: whole buffers, or the slices of two or four workers.
  const std::pair<std::string, std::string> sizes = kind == int8_sum        ? std::pair("76,800 int8", "51,200 int8")
                                                    : kind == packed_gather ? std::pair("4,800 int64", "3,200 int64")
                                                    : kind == hierarchical  ? std::pair("4800", "3200")
                                                                            : std::pair("2400", "1600");
  bool named = false;
  for (const std::string& error : errors)
    named |= error.find("rank 1 (thread1)") != std::string::npos && error.find(sizes.first) != std::string::npos &&
             error.find(sizes.second) != std::string::npos;
  INFO(join(errors, "\n"));
  CHECK(named);
  // Of two nodes only that of the odd rank sees it; the others wait for that node, until the deadline.
  for (const std::string& error : errors) CHECK(error != "");
}

TEST_CASE("sums of int8 hold 127 workers, wrap beyond in every element, and are never used there") {
  const auto sum_of = [](int workers) {
    // As long as a vector unit's registers and a rest, where the sums of MPI libraries disagree with themselves.
    const std::vector<int8_t> ones(100, 1);
    const std::vector<const void*> sources(static_cast<size_t>(workers), ones.data());
    std::vector<int8_t> result(100);
    reduce_in_order({DType::int8, DType::int8, ReduceOperation::sum}, sources, 100, result.data(), false);
    CHECK(std::count(result.begin(), result.end(), result[0]) == 100);
    return int{result[0]};
  };
  CHECK(sum_of(126) == 126);
  CHECK(sum_of(127) == 127);
  CHECK(sum_of(128) == -128);
  CHECK(vote_sum_dtype(126) == DType::int8);
  CHECK(vote_sum_dtype(127) == DType::int8);
  CHECK(vote_sum_dtype(128) == DType::int16);
  CHECK(vote_sum_dtype(129) == DType::int16);
  CHECK(vote_sum_dtype(32766) == DType::int16);
  CHECK(vote_sum_dtype(32767) == DType::int16);
  CHECK(vote_sum_dtype(32768) == DType::int32);
}

TEST_CASE("a unanimous vote of as many workers as int8 holds, and of more") {
  const int workers = GENERATE(126, 127, 128);
  CAPTURE(workers);
  std::atomic<int> right = 0;
  std::vector<std::string> choices(static_cast<size_t>(workers));
  const auto errors = run_ranks(workers, {}, [&](Communicator& group) {
    const auto backend = make_cpu_backend();
    const auto stream = make_inline_stream();
    const auto transport = make_vote_transport(*backend, group, VoteTransportKind::int8_sum, 1);
    const Tensor words = backend->allocate({1}, DType::int64, MemoryCategory::gradients, "votes");
    const int64_t all_but_two = ~int64_t{0x8000000001};
    words.data<int64_t>()[0] = all_but_two;
    transport->vote(*stream, words, 0, 5);
    stream->record().wait();
    right += words.data<int64_t>()[0] == all_but_two;
    choices[static_cast<size_t>(group.rank())] = transport->choice();
  });
  CHECK(join(errors, "") == "");
  CHECK(right == workers);
  if (workers < 128)
    CHECK(choices[0] == "int8_sum: as configured");
  else
    CHECK_THAT(choices[127], Catch::Contains("travel as int16") && Catch::Contains("128 workers") &&
                                 Catch::Contains("distribution.vote_transport = packed_scatter sends 16 times less"));
}
