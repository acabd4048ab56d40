// The transport under a communicator: non-blocking messages of bytes among the ranks of one group. Messages of one
// (sender, receiver, tag) arrive in the order in which they were sent. Thread-safe. No call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dmuon/core/error.h"

namespace dmuon {

// A message on its way. Destroying an unfinished request gives the message up: a receive is cancelled, a send may
// still be read by the transport until the group goes.
class MessageRequest {
 public:
  virtual ~MessageRequest() = default;
  // Lets the transport progress; true once the memory may be used again. Throws CommunicationError when the transport
  // failed or the message had another length than the receive expected.
  virtual bool done() = 0;
};

struct Notice {
  int rank = 0;
  std::string message;
};

class PointToPoint {
 public:
  // Tags lie in [0, maximum_tag].
  static constexpr int maximum_tag = 32000;
  // No single message is longer; collectives cut their data.
  static constexpr int64_t maximum_message_bytes = int64_t{1} << 30;

  virtual ~PointToPoint() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether all ranks are threads of this process.
  virtual bool one_process() const { return false; }

  virtual std::unique_ptr<MessageRequest> send(const void* data, int64_t bytes, int peer, int tag) = 0;
  // The message must have exactly `bytes` bytes.
  virtual std::unique_ptr<MessageRequest> receive(void* data, int64_t bytes, int peer, int tag) = 0;

  // Tells every other rank, outside the order of messages, that this rank gave up (best effort; at most 2 KiB of text).
  virtual void send_notice(const std::string& message) = 0;
  virtual std::optional<Notice> poll_notice() = 0;

  // A transport among `members` (ranks of this one, in their new order, this rank among them). Collective: every rank
  // of this group calls it for its own subgroup, with the same `sequence`. May block until all have entered.
  virtual std::shared_ptr<PointToPoint> subgroup(std::span<const int> members, int64_t sequence) = 0;

  // Ends the whole job.
  [[noreturn]] virtual void abort(ExitCode code) = 0;
};

}  // namespace dmuon
