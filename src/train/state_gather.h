// Brings the pieces of cut masters and optimizer states to the rank that writes them, chunk by chunk, so that no rank ever
// holds more than a chunk of foreign values.
//
// Tensors that are voted on exist once in every replica, cut over its shards: their masters and global states are equal
// there and come from one replica, their local states differ and come from each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dmuon/shard/sharded_model.h"

namespace dmuon {

// All ranks walk the same sequence: cut masters by key, then cut states by key, as the files are written. The writer of a
// tensor receives its chunks, the others send theirs. A rank whose file has failed still walks to the end, so that nobody
// waits for it.
class StateGather {
 public:
  static constexpr int master = -1;
  static constexpr int all_replicas = -1;  // pieces of all ranks cover the tensor together
  struct Item {
    std::string key;
    int tensor = 0;
    int state = master;          // or an index into the rule's states
    int replica = all_replicas;  // the replica whose ranks hold the pieces
    int64_t elements = 0;
  };

  // Collective: what every rank holds is asked for, because it depends on grid and method.
  StateGather(Backend& backend, Communicator& world, ShardedModel& model);

  // The rank that writes a tensor and its global states: the holder of its first element, or one of those that hold all of it.
  int writer(int tensor) const { return writer(tensor, source(tensor)); }
  // The rank that writes the local states of one replica; `all_replicas` for tensors that are not voted on.
  int writer(int tensor, int replica) const;
  // Where a tensor's master and global states come from: `all_replicas`, or one replica for a tensor that is voted on.
  int source(int tensor) const { return sources_[static_cast<size_t>(tensor)]; }
  const std::vector<Item>& items() const { return items_; }
  // For the writer of item `index`: copies elements [first, first + count) to host memory. Ascending, within the item
  // being walked; serves everything that comes before it in the sequence.
  void read(size_t index, int64_t first, int64_t count, float* destination);
  // Serves the rest of the sequence. Every rank calls it after its file, whether that succeeded or not.
  void finish();

 private:
  struct Holders {
    int writer = 0;
    bool whole = false;  // some rank holds all of the tensor: nothing is gathered
  };
  Holders find_holders(int tensor, int replica) const;
  const Holders& holders(int tensor, int replica) const;
  // The piece of the tensor's elements [first, last) that `rank` sends for an item of that replica.
  Piece part(int rank, const Item& item, int64_t first, int64_t last) const;
  void exchange_chunk();
  void advance_to(size_t index, int64_t chunk);

  Backend& backend_;
  Communicator& world_;
  ShardedModel& model_;
  std::vector<Item> items_;
  std::vector<std::vector<Piece>> pieces_;     // by rank
  std::vector<int> sources_;                   // by tensor
  std::vector<std::vector<Holders>> holders_;  // by tensor, then by replica where it is voted on
  size_t item_ = 0;                            // the next chunk to be exchanged
  int64_t chunk_ = 0;
  size_t held_item_ = 0;  // the chunk in staging_
  int64_t held_chunk_ = -1;
  std::vector<float> staging_;
};

}  // namespace dmuon
