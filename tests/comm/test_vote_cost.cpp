// The costs of votes against published and hand-computed numbers.
#include <cmath>

#include "dmuon/comm/vote_cost.h"
#include "dmuon/core/error.h"
#include "support/catch.h"

using namespace dmuon;
using enum VoteTransportKind;

namespace {

// Bytes a worker sends for every element, of a vote that all numbers here divide.
double bytes_per_element(VoteTransportKind kind, int64_t workers, int64_t nodes = 1) {
  const int64_t words = int64_t{1} << 20;
  return static_cast<double>(vote_bytes(kind, {workers, nodes, words}).total) / static_cast<double>(workers * 64 * words);
}

VoteLinks alike(const LinkCost& link) { return {link, link, link}; }

constexpr LinkCost ethernet{30e-6, 1 / 1.25e9}, infiniband{5e-6, 1 / 12.5e9}, nvlink{4e-6, 1 / 200e9};

// The smallest vote, in parameters, for which `a` is predicted to be faster than `b`.
double crossover(VoteTransportKind a, VoteTransportKind b, int64_t workers, const LinkCost& link) {
  int64_t low = 0, high = int64_t{1} << 32;  // words
  while (high - low > 1) {
    const VoteSize size{workers, 1, (low + high) / 2};
    (predicted_vote_seconds(a, size, alike(link)) < predicted_vote_seconds(b, size, alike(link)) ? high : low) = size.words;
  }
  return 64.0 * static_cast<double>(high);
}

}  // namespace

TEST_CASE("names of transports") {
  for (const auto kind : {automatic, int8_sum, packed_gather, packed_scatter, hierarchical})
    CHECK(vote_transport_from_name(name_of(kind)) == kind);
  CHECK(name_of(automatic) == "auto");
  CHECK_THROWS_MATCHES(vote_transport_from_name("packed_scater"), ConfigError,
                       Catch::Message("distribution.vote_transport: \"packed_scater\" is none of auto, int8_sum, packed_gather, "
                                      "packed_scatter, hierarchical; did you mean \"packed_scatter\"?"));
}

TEST_CASE("bytes of a worker in units of the elements") {
  struct Row {
    int64_t workers;
    double fp32, bf16, int8, gather, scatter;
  };
  // Rounded to the digits given.
  const Row table[] = {{2, 4.00, 2.00, 1.00, .125, .125},   {3, 5.33, 2.67, 1.33, .250, .167},    {4, 6.00, 3.00, 1.50, .375, .188},
                       {8, 7.00, 3.50, 1.75, .875, .219},   {16, 7.50, 3.75, 1.88, 1.875, .234},  {32, 7.75, 3.88, 1.94, 3.875, .242},
                       {64, 7.88, 3.94, 1.97, 7.875, .246}, {1024, 7.99, 4.00, 4.00, 127.9, .250}};
  for (const Row& row : table) {
    CAPTURE(row.workers);
    CHECK(all_reduce_bytes_per_rank(row.workers, 1, 4) == Approx(row.fp32).margin(.00501));
    CHECK(all_reduce_bytes_per_rank(row.workers, 1, 2) == Approx(row.bf16).margin(.00501));
    CHECK(bytes_per_element(int8_sum, row.workers) == Approx(row.int8).margin(.00501));
    CHECK(bytes_per_element(packed_gather, row.workers) == Approx(row.gather).margin(.0501));
    CHECK(bytes_per_element(packed_scatter, row.workers) == Approx(row.scatter).margin(.000501));
    CHECK(all_reduce_bytes_per_rank(row.workers, 1, 4) / bytes_per_element(packed_scatter, row.workers) == Approx(32));
    CHECK(all_reduce_bytes_per_rank(row.workers, 1, 4) / bytes_per_element(packed_gather, row.workers) ==
          Approx(64.0 / static_cast<double>(row.workers)));
  }
  CHECK(vote_bytes(packed_scatter, {1, 1, 100}).total == 0);
  // Whole numbers: 3 workers, 5 words.
  CHECK(vote_bytes(packed_gather, {3, 1, 5}).total == 240);
  CHECK(vote_bytes(packed_scatter, {3, 1, 5}).total == 160);
  CHECK(vote_bytes(int8_sum, {3, 1, 5}).total == 1280);
  CHECK(vote_bytes(int8_sum, {128, 1, 5}).total == 2 * 127 * 320 * 2);
  CHECK_THROWS_AS(vote_bytes(packed_gather, {1 << 20, 1, int64_t{1} << 40}), ConfigError);
}

TEST_CASE("bytes that leave a node") {
  CHECK(vote_count_bits(32, 4) == 4);  // up to 8 and one
  CHECK(vote_count_bits(9, 3) == 2);
  CHECK(vote_count_bits(6, 2) == 3);  // 3 and one more need a bit more
  CHECK(vote_count_bits(4, 4) == 2);
  const int64_t words = 1 << 20;
  const auto per_node = [&](VoteTransportKind kind) {
    return static_cast<double>(vote_bytes(kind, {32, 4, words}).between) / (4.0 * 64 * static_cast<double>(words));
  };
  CHECK(per_node(packed_scatter) == Approx(8 * 24.0 / 32 / 4));  // direct sends to the 24 workers elsewhere
  CHECK(per_node(hierarchical) == Approx(.47).margin(.005));
}

TEST_CASE("crossover sizes of the published table") {
  struct Row {
    LinkCost link;
    double three, four, eight;
  };
  for (const Row& row : {Row{ethernet, .9e6, .6e6, .4e6}, Row{infiniband, 1.5e6, 1.0e6, .67e6}, Row{nvlink, 19e6, 13e6, 8.5e6}}) {
    CHECK(crossover(packed_scatter, packed_gather, 3, row.link) == Approx(row.three).epsilon(.02));
    CHECK(crossover(packed_scatter, packed_gather, 4, row.link) == Approx(row.four).epsilon(.02));
    CHECK(crossover(packed_scatter, packed_gather, 8, row.link) == Approx(row.eight).epsilon(.02));
  }
  // Of two workers never, and up to sixteen gathering always beats summing.
  for (const int64_t words : {int64_t{1}, int64_t{1} << 14, int64_t{1} << 30}) {
    CHECK(predicted_vote_seconds(packed_gather, {2, 1, words}, alike(ethernet)) <
          predicted_vote_seconds(packed_scatter, {2, 1, words}, alike(ethernet)));
    CHECK(predicted_vote_seconds(packed_gather, {16, 1, words}, alike(ethernet)) <
          predicted_vote_seconds(int8_sum, {16, 1, words}, alike(ethernet)));
  }
  CHECK(crossover(int8_sum, packed_gather, 32, ethernet) == Approx(8 * 30e-6 * 32 / (16 / 1.25e9)).epsilon(.02));
}

TEST_CASE("predicted seconds") {
  const LinkCost link{1e-3, 1e-6};
  const VoteSize size{4, 2, 1000};
  CHECK(predicted_vote_seconds(packed_gather, size, alike(link)) == Approx(3e-3 + 3 * 8000e-6));
  CHECK(predicted_vote_seconds(packed_scatter, size, alike(link)) == Approx(6e-3 + 1.5 * 8000e-6));
  CHECK(predicted_vote_seconds(int8_sum, size, alike(link)) == Approx(6e-3 + 1.5 * 64000e-6));
  CHECK(predicted_all_reduce_seconds(4, 64000, 4, link) == Approx(6e-3 + 1.5 * 256000e-6));
  // Slices and results inside (2·4000 bytes), counts of 2 bits and results between (2000·(2 + 1) bytes): up to 2 + 1.
  CHECK(predicted_vote_seconds(hierarchical, size, alike(link)) == Approx(2e-3 + 8000e-6 + 2e-3 + 6000e-6));
  CHECK(predicted_vote_seconds(packed_gather, {1, 1, 1000}, alike(link)) == 0);
}

TEST_CASE("the choice is the cheapest and says why") {
  const VoteChoice large = choose_vote_transport({4, 1, 165888}, alike(ethernet));
  CHECK(large.kind == packed_scatter);
  CHECK(large.reason ==
        "packed_scatter: 1.8 ms predicted (packed_gather 3.3 ms predicted; int8_sum 12.9 ms predicted) for 4 workers, 10,616,832 votes, "
        "30 us and 1.25 GB/s");
  CHECK(choose_vote_transport({4, 1, 1000}, alike(ethernet)).kind == packed_gather);
  CHECK(choose_vote_transport({2, 1, 165888}, alike(ethernet)).kind == packed_gather);
  // Nodes joined by a slow link.
  const VoteChoice nodes = choose_vote_transport({32, 4, 165888}, {ethernet, nvlink, ethernet});
  CHECK(nodes.kind == hierarchical);
  CHECK_THAT(nodes.reason, Catch::Contains("inside a node 4 us and 200 GB/s, between nodes 30 us"));
  // Links of no cost: the fewest bytes.
  CHECK(choose_vote_transport({4, 1, 1000}, {}).kind == packed_scatter);
  // One worker a node gains nothing from levels.
  CHECK(choose_vote_transport({4, 4, 165888}, alike(ethernet)).kind == packed_scatter);
}

TEST_CASE("measured votes decide over predicted ones") {
  const VoteSize size{4, 1, 165888};
  const LinkCost memory{2e-6, 1 / 10e9};
  std::vector<VoteCandidate> candidates = vote_candidates(size, alike(memory));
  REQUIRE(candidates.size() == 3);
  CHECK(candidates[0].kind == packed_scatter);
  candidates[0].measured_seconds = 3.6e-3;
  candidates[1].measured_seconds = 1.3e-3;
  CHECK(candidates[1].kind == packed_gather);
  const VoteChoice choice = choose_vote_transport(size, alike(memory), candidates);
  CHECK(choice.kind == packed_gather);
  CHECK_THAT(choice.reason, Catch::StartsWith("packed_gather: 1.3 ms measured, 404 us predicted (packed_scatter 3.6 ms measured, 211 us "
                                              "predicted; int8_sum 1.6 ms predicted) for 4 workers"));
  // One that was not measured does not win against one that was, whatever is predicted.
  candidates[1].measured_seconds = 0;
  CHECK(choose_vote_transport(size, alike(memory), candidates).kind == packed_scatter);
}

TEST_CASE("a link as text") {
  CHECK(link_text(ethernet) == "30 us and 1.25 GB/s");
  CHECK(link_text({1e-3, 0}) == "1.0 ms and no limit");
  CHECK(link_text({0, 1e-30}) == "0 us and no limit");
}

TEST_CASE("sums that int8 cannot hold are said once, with the remedy") {
  CHECK(vote_sum_note(127) == "");
  CHECK(vote_sum_note(128) ==
        "int8_sum: the sum of 128 workers does not fit into int8, so votes travel as int16 with 2 times the bytes; "
        "distribution.vote_transport = packed_scatter sends 16 times less");
}
