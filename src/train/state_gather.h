// Brings the pieces of cut masters and optimizer states to the rank that writes them, chunk by chunk, so that no rank ever
// holds more than a chunk of foreign values.
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
  struct Item {
    std::string key;
    int tensor = 0;
    int state = master;  // or an index into the rule's states
    int64_t elements = 0;
  };

  // Collective: what every rank holds is asked for, because it depends on grid and method.
  StateGather(Backend& backend, Communicator& world, ShardedModel& model);

  // The rank that writes a tensor and its states: the holder of its first element, or one of those that hold all of it.
  int writer(int tensor) const { return writers_[static_cast<size_t>(tensor)]; }
  const std::vector<Item>& items() const { return items_; }
  // For the writer of item `index`: copies elements [first, first + count) to host memory. Ascending, within the item
  // being walked; serves everything that comes before it in the sequence.
  void read(size_t index, int64_t first, int64_t count, float* destination);
  // Serves the rest of the sequence. Every rank calls it after its file, whether that succeeded or not.
  void finish();

 private:
  void exchange_chunk();
  void advance_to(size_t index, int64_t chunk);

  Backend& backend_;
  Communicator& world_;
  ShardedModel& model_;
  std::vector<Item> items_;
  std::vector<std::vector<Piece>> pieces_;  // by rank
  std::vector<int> writers_;                // by tensor
  size_t item_ = 0;                         // the next chunk to be exchanged
  int64_t chunk_ = 0;
  size_t held_item_ = 0;  // the chunk in staging_
  int64_t held_chunk_ = -1;
  std::vector<float> staging_;
};

}  // namespace dmuon
