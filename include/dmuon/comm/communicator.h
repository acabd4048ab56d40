// Collectives among the ranks of a group. Conventions:
//
// - Every rank of the group enters every collective in the same order with matching arguments.
// - Operations take a stream and return at once; their data may be used after the stream reached them (Event).
//   Buffers are contiguous tensors of the same dtype on every rank; handles are kept until the operation is done.
// - Reductions add in rank order, so a result depends on the inputs only, not on timing or transport.
// - Counts are 64-bit. Empty segments are legal.
// - Every operation has a deadline. A failure or an expired deadline surfaces as CommunicationError from the waits of
//   the stream: it names the operation, its sequence number, this rank and the ranks that have not answered, by their ranks in the world.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/backend/stream.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

class Backend;

enum class ReduceOperation : uint8_t { sum, maximum, minimum };

// How all_gather_v moves its segments between hosts; the bits are equal. automatic: all_gather. broadcasts: one
// broadcast per segment. padded: segments staged at equal length, as a transport without uneven segments needs it.
enum class GatherForm : uint8_t { automatic, all_gather, broadcasts, padded };

// Payload bytes that other ranks received from (or read in the memory of) this rank.
struct TrafficBytes {
  int64_t inside = 0;   // by ranks on this rank's node
  int64_t between = 0;  // by ranks on other nodes
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host(int rank) const = 0;  // host name of a rank, for messages
  // Number of the node (host, or virtual node) of a rank, from 0 in the order of the nodes' lowest ranks.
  virtual int node(int rank) const = 0;

  // Memory for the collectives of this group, of its own or of groups split off it: where all ranks share a node, memory
  // that they reach in place, so that collectives on it copy less; else, or where any rank's backend is guarded or a
  // device, the backend's own. Content undefined (NaN where the backend's allocator fills it with that). Collective
  // and blocking: every rank asks for the same sizes in the same order; freed when the last handle goes.
  virtual Tensor allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) = 0;

  virtual void barrier(Stream& stream) = 0;
  // `data` of `root` replaces everybody's.
  virtual void broadcast(Stream& stream, const Tensor& data, int root) = 0;
  // In place. Floating types, int64, int32, int16, int8 (integer sums wrap at their width, wherever they run), uint8 (no sums).
  virtual void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) = 0;
  // Rank r owns elements [cuts[r], cuts[r + 1]) of `buffer`; afterwards every rank holds all of them.
  virtual void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts,
                            GatherForm form = GatherForm::automatic) = 0;
  // `result` (cuts[rank + 1] - cuts[rank] elements) receives, or with `accumulate` is increased by, the sum over ranks
  // of their buffer's segment of this rank. `result` may be that segment of `buffer` itself (when not accumulating).
  // Of a bfloat16 buffer the result is bfloat16 or float32: terms are added in float32 in rank order, and the sum
  // (with what `result` held before) is rounded once, when the result is bfloat16.
  virtual void reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                                bool accumulate) = 0;
  // send_cuts/receive_cuts have size() + 1 entries: segment r goes to / comes from rank r.
  virtual void all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                            std::span<const int64_t> receive_cuts) = 0;

  // Blocking control operations on small host data; also ordered collectives, with the current deadline.
  // Everybody's text, by rank.
  virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;
  virtual std::string broadcast_text(const std::string& mine, int root) = 0;
  virtual std::vector<double> all_reduce(std::span<const double> values, ReduceOperation operation) = 0;
  // Returns when every rank said ok; otherwise every rank throws the same Error: the text and exit code of the lowest
  // failing rank, prefixed by its rank in the world and host.
  virtual void agree(bool ok, const std::string& message, ExitCode code) = 0;

  // New group of the ranks with equal color, ordered by (key, rank). Collective. `name` appears in messages and
  // separates traffic classes: split(0, rank(), "gradients") duplicates the group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
  // The same ranks as a group in which `nodes` equal blocks of consecutive ranks count as nodes (virtual nodes): ranks of
  // different blocks share no memory, here and in groups split off. Collective. ConfigError unless `nodes` divides size().
  virtual std::unique_ptr<Communicator> divide_into_nodes(int nodes, const std::string& name) = 0;

  // What the next operation that this thread enters here is for ("gradients of blocks.3"), in its messages only: ranks
  // need not agree on it.
  virtual void describe_next(std::string) {}

  // Seconds an operation may take before it expires (0: no limit); applies to operations entered later.
  virtual void set_deadline(double seconds) = 0;
  // What this rank has sent through this group, for metrics; bytes_sent() is both levels together.
  virtual TrafficBytes traffic() const = 0;
  int64_t bytes_sent() const { return traffic().inside + traffic().between; }
  // Ends the whole job with this exit code, after flushing output. Does not return.
  [[noreturn]] virtual void abort(ExitCode code) = 0;
};

// A group of one: every operation is complete at once and moves nothing.
std::unique_ptr<Communicator> make_self_communicator();

// What `like` would be over a network of no cost, for measuring how much communication is exposed: ranks, nodes, memory
// and blocking control operations are those of `like`, which must outlive it; operations on a stream check their
// arguments, move nothing, leave results as they are and are complete at once. While `*silent` is false (never, if null)
// they are the real ones, so that one job can alternate; every rank switches between the same two operations.
std::unique_ptr<Communicator> make_null_communicator(Communicator& like, std::shared_ptr<const std::atomic<bool>> silent = nullptr);

}  // namespace dmuon
