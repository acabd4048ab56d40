// What a vote costs: bytes and predicted seconds of every transport, as pure functions of the number of workers, nodes and
// words, under the model "a message costs latency + bytes · seconds_per_byte". What counting and copies cost is not in it,
// which in shared memory is most of a vote. The choice of `auto`, dmuon_bench and dmuon_plan share them.
//
// A vote is over 64-bit words, one bit an element (and header words beside them): a piece of n elements takes ceil(n/64)
// words. With M workers, h nodes of g = M/h workers and W words (8·W bytes), the bytes that all workers together send are
//
//   int8_sum        2(M-1)·64·W·s     s bytes of a sum: 1, 2 or 4 (vote_sum_dtype)
//   packed_gather   M(M-1)·8·W
//   packed_scatter  2(M-1)·8·W
//   hierarchical    2h(g-1)·8·W inside nodes, (h-1)(c+1)·8·W between them, c bits of a count (vote_count_bits)
//
// exactly, whatever M divides. One worker sends the M-th part where M (hierarchical: g and h) divides W, else up to M - 2
// words more or less, because slices are cut at words: slice r is [r·W/M, (r+1)·W/M), rounded down. Fewer words than
// workers is legal: some slices are empty. Not in these numbers: sums of at most 16 KiB, which all_reduce gathers whole,
// M(M-1)·64·W·s.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/dtype.h"

namespace dmuon {

// How votes are counted among the workers; all give equal bits.
enum class VoteTransportKind : uint8_t {
  automatic,       // the fastest, by measured links and, where that is soon done, measured votes
  int8_sum,        // sum of ±1 as the paper does it, widened beyond 127 workers
  packed_gather,   // every worker receives the words of all and counts
  packed_scatter,  // every worker counts one slice of the words of all; the result is gathered
  hierarchical,    // counted inside the nodes, counts added between them: the same bits, for several nodes
};
std::string_view name_of(VoteTransportKind kind);  // "auto", "int8_sum", …
// ConfigError naming distribution.vote_transport and the names that exist.
VoteTransportKind vote_transport_from_name(std::string_view name);

struct LinkCost {
  double latency_seconds = 0;
  double seconds_per_byte = 0;
};

// Of the whole group; inside a node; between nodes, of the workers with equal place in their nodes. On one node all are alike.
struct VoteLinks {
  LinkCost all, inside, between;
};

struct VoteSize {
  int64_t workers = 1;
  int64_t nodes = 1;  // divides workers
  int64_t words = 0;
};

// Of the sum of ±1, to which worker (step mod M) contributes ±2 where M is even: int8 up to 127 workers, int16 up to
// 32,767, then int32. (An odd M reaches M, an even one M + 1.)
DType vote_sum_dtype(int64_t workers);
// What a user of int8_sum should know where that dtype is wider than int8, with the remedy; else empty.
std::string vote_sum_note(int64_t workers);
// Bits of a count of the votes of one node: up to g, and one more where M is even.
int vote_count_bits(int64_t workers, int64_t nodes);

// Bytes that all workers together send; `between` of them to other nodes (direct sends).
struct VoteBytes {
  int64_t total = 0;
  int64_t between = 0;
};
VoteBytes vote_bytes(VoteTransportKind kind, const VoteSize& size);
// The mean of a worker, of any size.
double vote_bytes_per_worker(VoteTransportKind kind, const VoteSize& size);
double predicted_vote_seconds(VoteTransportKind kind, const VoteSize& size, const VoteLinks& links);

// A ring or reduce-scatter and all-gather of `elements` of that many bytes: 2(M-1) latencies and 2(M-1)/M of the buffer.
double all_reduce_bytes_per_rank(int64_t workers, int64_t elements, int64_t element_bytes);
double predicted_all_reduce_seconds(int64_t workers, int64_t elements, int64_t element_bytes, const LinkCost& link);

// The number of votes above which packed_scatter is predicted to beat packed_gather, 8·M·latency / (seconds_per_byte·(M - 2)):
// infinite for two workers.
double votes_where_scatter_pays(int64_t workers, const LinkCost& link);

// Kinds that these workers can use, in the order of VoteTransportKind, without `automatic`: hierarchical only of at least two nodes.
std::vector<VoteTransportKind> possible_vote_transports(const VoteSize& size);

std::string vote_seconds_text(double seconds);  // "30 us", "1.2 ms", "8.33 s"
std::string link_text(const LinkCost& link);    // "30 us and 1.25 GB/s"; "no limit" where bytes cost nothing

struct VoteCandidate {
  VoteTransportKind kind = VoteTransportKind::packed_gather;
  double predicted_seconds = 0;
  double measured_seconds = 0;  // of votes with their counting; 0: not measured
};
// What these workers can use, by predicted seconds, of equal ones by bytes. (hierarchical only where a node has several workers.)
std::vector<VoteCandidate> vote_candidates(const VoteSize& size, const VoteLinks& links);

struct VoteChoice {
  VoteTransportKind kind = VoteTransportKind::packed_gather;
  // For people: "packed_scatter: 1.8 ms predicted (packed_gather 3.3 ms predicted, ...) for 4 workers, 10,616,832 votes, 30 us and 1.25
  // GB/s".
  std::string reason;
};
// The candidate of the fewest measured seconds, or, where none is measured, of the fewest predicted.
VoteChoice choose_vote_transport(const VoteSize& size, const VoteLinks& links, std::vector<VoteCandidate> candidates);
VoteChoice choose_vote_transport(const VoteSize& size, const VoteLinks& links);  // by prediction alone

}  // namespace dmuon
