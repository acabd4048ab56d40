// What a rank says about the collective it has entered, so that peers in another collective learn of it by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/dtype.h"

namespace dmuon {

enum class OperationKind : uint8_t {
  barrier,
  broadcast,
  all_reduce,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
  all_gather_text,
  broadcast_text,
  all_reduce_values,
  agree,
  split,
  allocate
};

struct Operation {
  OperationKind kind = OperationKind::barrier;
  int64_t sequence = 0;  // counts the collectives of the group from 1
  DType dtype = DType::uint8;
  ReduceOperation reduction = ReduceOperation::sum;
  int root = 0;            // its rank in the world; of all_gather_v the form
  int64_t elements = 0;    // of the whole buffer; 0 where ranks may differ
  uint64_t cuts_hash = 0;  // of the cuts; 0 without
  std::string label = {};  // what it is for, or empty; not told to the others

  std::string describe() const;  // "reduce_scatter_v #12 (gradients of blocks.3) of 1,000 float32"
};

uint64_t hash_cuts(std::span<const int64_t> cuts);

// The first message between two ranks of every collective, in the byte order of the machine.
struct Greeting {
  uint64_t magic = 0;
  int64_t sequence = 0;
  int64_t elements = 0;
  uint64_t cuts_hash = 0;
  int64_t payload = 0;  // bytes that follow from the sender to the receiver of this greeting
  int32_t root = 0;
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t unused = 0;
};

Greeting make_greeting(const Operation& operation, int64_t payload);
// False for bytes that are no greeting.
bool read_greeting(const Greeting& greeting, Operation& operation);
bool same_call(const Operation& a, const Operation& b);

}  // namespace dmuon
