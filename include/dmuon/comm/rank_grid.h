// Ranks as a grid of replicas × shards (design: one slot per rank, the segment of a shard is the slots of its replicas).
#pragma once

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

struct RankGrid {
  int replicas = 1;
  int shards = 1;

  int ranks() const { return replicas * shards; }
  // Ranks are laid out shard-fastest, so that the shard group of a replica is a run of consecutive ranks (a node).
  int rank(int shard, int replica) const { return replica * shards + shard; }
  int shard_of(int rank) const { return rank % shards; }
  int replica_of(int rank) const { return rank / shards; }
  // The slot a rank owns: those of one shard lie side by side.
  int slot(int shard, int replica) const { return shard * replicas + replica; }
  int slot_of(int rank) const { return slot(shard_of(rank), replica_of(rank)); }
  int rank_of_slot(int slot) const { return rank(slot / replicas, slot % replicas); }
};

// Throws ConfigError unless `replicas` divides `ranks`.
inline RankGrid make_rank_grid(int ranks, int replicas) {
  if (replicas < 1 || ranks < 1 || ranks % replicas != 0)
    throw ConfigError(text(replicas, " replicas do not divide ", ranks, " ranks; choose a divisor of the number of ranks"));
  return {replicas, ranks / replicas};
}

}  // namespace dmuon
