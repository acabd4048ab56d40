// Collectives among the ranks of a group. Conventions:
//
// - Every rank of the group enters every collective in the same order with matching arguments.
// - Operations take a stream and return at once; their data may be used after the stream reached them (Event).
//   Buffers are contiguous tensors of the same dtype on every rank; handles are kept until the operation is done.
// - Reductions add in rank order, so a result depends on the inputs only, not on timing or transport.
// - Counts are 64-bit. Empty segments are legal.
// - Every operation has a deadline. A failure or an expired deadline surfaces as CommunicationError from the waits of
//   the stream: it names the operation, its sequence number, this rank and the ranks that have not answered.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/stream.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

enum class ReduceOperation : uint8_t { sum, maximum, minimum };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host(int rank) const = 0;  // host name of a rank, for messages

  virtual void barrier(Stream& stream) = 0;
  // `data` of `root` replaces everybody's.
  virtual void broadcast(Stream& stream, const Tensor& data, int root) = 0;
  // In place. float32, float64, int64, int32, uint8 (maximum/minimum only for integers of 8 bits).
  virtual void all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) = 0;
  // Rank r owns elements [cuts[r], cuts[r + 1]) of `buffer`; afterwards every rank holds all of them.
  virtual void all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts) = 0;
  // `result` (cuts[rank + 1] - cuts[rank] elements) receives, or with `accumulate` is increased by, the sum over ranks
  // of their buffer's segment of this rank. `result` may be that segment of `buffer` itself (when not accumulating).
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
  // failing rank, prefixed by its rank and host.
  virtual void agree(bool ok, const std::string& message, ExitCode code) = 0;

  // New group of the ranks with equal color, ordered by (key, rank). Collective. `name` appears in messages and
  // separates traffic classes: split(0, rank(), "gradients") duplicates the group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

  // Seconds an operation may take before it expires (0: no limit); applies to operations entered later.
  virtual void set_deadline(double seconds) = 0;
  // Bytes this rank has sent through this group (payload), for metrics.
  virtual int64_t bytes_sent() const = 0;
  // Ends the whole job with this exit code, after flushing output. Does not return.
  [[noreturn]] virtual void abort(ExitCode code) = 0;
};

// A group of one: every operation is complete at once and moves nothing.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace dmuon
