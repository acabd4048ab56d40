// How a model's units are spread over the ranks of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/comm/vote_cost.h"

namespace dmuon {

class Trace;

enum class Distribution : uint8_t {
  owner,       // every whole tensor is updated by the one rank that holds it
  gather,      // baseline: equal flat shards; every rank gathers the gradients and computes every whole-tensor update
  replicated,  // baseline: all-reduced gradients, every rank holds and updates everything (units are of stage 1)
};
std::string_view name_of(Distribution distribution);
Distribution distribution_from_name(std::string_view name);  // ConfigError naming the allowed values

// Test hook: called for every held piece after the reduction, may overwrite the gradient. `first` is the piece's first
// element in its parameter. Proofs of bit-equality across grids feed equal reduced gradients through it.
using GradientInjection = std::function<void(const std::string& parameter, int64_t first, const Tensor& gradient)>;

// The same on every rank (compared when the model is made).
struct ShardedModelOptions {
  Distribution distribution = Distribution::owner;
  int replicas = 1;  // the ranks are replicas x shards; a shard group is a run of consecutive ranks (a node)
  // 1: full parameters, full local gradients, owned state. 2: gradients are reduced per unit. 3: parameters exist outside
  // their owner only while a unit computes.
  int stage = 2;
  std::vector<int> unit_stages;  // one per unit, or empty: `stage` for all
  DType compute_dtype =
      DType::float32;  // of published values (float32 or bfloat16), computed in where the backend can; masters are float32
  DType gradient_dtype = DType::float32;  // of gradients on their way (float32 or bfloat16); owners add in float32
  bool reduce_every_micro_batch = false;  // stage 1 too: reduce after every micro-batch instead of once a step
  bool overlap = true;                    // false: every collective is waited for at once; the same bits
  int look_ahead = 2;                     // stage 3: uses of units that are gathered before they are needed
  int outstanding_reduces = 2;            // gradient buffers in flight before the backward waits
  // How a unit is gathered; automatic: measured at the start, rank 0 decides. Equal bits.
  GatherForm publish_form = GatherForm::automatic;
  // Of rules that agree by vote: how the votes travel (equal bits), and what the signs of exact zeros depend on.
  VoteTransportKind vote_transport = VoteTransportKind::automatic;
  uint64_t vote_seed = 0;
  // With overlap, the votes of windows travel together until they have so many packed bytes (0: each window's alone). A vote
  // takes a few dependent messages between all workers, each with a worker's share of the bytes: those of 512 KiB among 8 workers are
  // still long beside the latency of slow links, 64 KiB against the 12 KiB that 1 Gbit/s carries in 100 us.
  int64_t vote_ballot_bytes = int64_t{512} << 10;
  Trace* trace = nullptr;  // records collectives, waits and compute when given
  // All collectives on one stream, in one order: for a backend that runs all its streams on the calling thread (the deferred
  // test double), where collectives of two streams could wait for each other across ranks.
  bool one_stream = false;
  GradientInjection inject;
};

}  // namespace dmuon
