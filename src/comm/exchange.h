// One collective of one rank as a set of flows of messages, driven by polling: it never blocks inside the transport,
// so that it can expire and name the peers that have not answered.
//
// The first message to every peer of a collective is a greeting that names the collective; data is received only
// after the peer's greeting matched, so ranks in different collectives get an error that names both.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "comm/deadline.h"
#include "comm/group.h"
#include "comm/operation.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

struct MessagePiece {
  char* data = nullptr;
  int64_t bytes = 0;
};

// [data, data + bytes) in pieces of at most `piece_bytes`, appended to `pieces`.
void append_pieces(std::vector<MessagePiece>& pieces, char* data, int64_t bytes, int64_t piece_bytes);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // Messages to or from one peer, in order.
  struct Flow {
    int peer = 0;
    bool sending = false;
    std::vector<MessagePiece> pieces;
    // Pieces at and after *limit may not start yet; null: all may. Owned by the caller.
    const int64_t* limit = nullptr;
    // A receive whose length the sender decides: asked for memory when the greeting came.
    std::function<char*(int64_t bytes)> place;
    int64_t completed = 0;  // pieces finished, in order

   private:
    friend class Exchange;
    int64_t started = 0;
    std::deque<std::unique_ptr<MessageRequest>> in_flight;
    bool finished() const { return !place && completed == static_cast<int64_t>(pieces.size()); }
  };

  // `tensors` and the memory of staging are kept until every message is done, whatever happens.
  Exchange(Group& group, const Operation& operation, std::vector<Tensor> tensors);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Group& group() { return group_; }
  const Group& group() const { return group_; }
  // Staging memory that lives as long as the exchange.
  char* stage(int64_t bytes, const char* purpose);

  // Keeps other memory of messages likewise.
  void keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }

  // The returned flow lives until the next run() has returned.
  Flow& send(int peer, std::vector<MessagePiece> pieces, const int64_t* limit = nullptr);
  Flow& receive(int peer, std::vector<MessagePiece> pieces, const int64_t* limit = nullptr);
  Flow& receive(int peer, std::function<char*(int64_t bytes)> place);

  // Drives all flows to their end. `work` runs after every sweep and returns whether it did something; it may raise
  // limits. Throws CommunicationError.
  void run(const std::function<bool()>& work = {});

  // Throws through the group, keeping unfinished memory.
  [[noreturn]] void fail(const std::string& message);

 private:
  struct Peer {
    bool greeted = false;  // our greeting left
    bool heard = false;    // its greeting came and matched
    int64_t expected = -1;
    int64_t payload = 0;
    Greeting outgoing;
    Greeting incoming;
    std::unique_ptr<MessageRequest> sent;
    std::unique_ptr<MessageRequest> received;
  };

  int greeting_tag() const;
  int data_tag() const;
  bool advance(Flow& flow);
  // Errors of the transport, with the operation and the peer.
  bool done(MessageRequest& request, int peer) const;
  bool advance_greeting(Flow& flow);
  void drive(const std::function<bool()>& work);
  void check_greeting(int peer);
  std::vector<std::string> waiting_for();

  Group& group_;
  Operation operation_;
  std::vector<Tensor> tensors_;
  std::vector<StorageHandle> staging_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<Peer> peers_;
  std::deque<Flow> flows_;
  Deadline deadline_;
  Activity::Scope scope_;
};

}  // namespace dmuon
