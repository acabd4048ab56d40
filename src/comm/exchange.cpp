#include "comm/exchange.h"

#include <algorithm>

#include "comm/backoff.h"
#include "comm/expiry.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t messages_in_flight = 4;  // per flow: enough to keep the transport busy, few enough to stay in order

}  // namespace

void append_pieces(std::vector<MessagePiece>& pieces, char* data, int64_t bytes, int64_t piece_bytes) {
  for (int64_t first = 0; first < bytes; first += piece_bytes) pieces.push_back({data + first, std::min(piece_bytes, bytes - first)});
}

Exchange::Exchange(Group& group, const Operation& operation, std::vector<Tensor> tensors)
    : group_(group),
      operation_(operation),
      tensors_(std::move(tensors)),
      peers_(static_cast<size_t>(group.size())),
      deadline_(group.deadline_seconds()),
      scope_(*group.services().activity, operation, group.name()) {
  for (const Tensor& tensor : tensors_)
    if (tensor.defined()) tensor.storage()->open();
}

Exchange::~Exchange() {
  for (const Tensor& tensor : tensors_)
    if (tensor.defined()) tensor.storage()->close();
  for (const StorageHandle& storage : staging_) storage->close();
}

char* Exchange::stage(int64_t bytes, const char* purpose) {
  StorageHandle storage = group_.services().staging->allocate(std::max<int64_t>(bytes, 1), MemoryCategory::communication, purpose);
  storage->open();
  staging_.push_back(storage);
  return static_cast<char*>(storage->data());
}

// The tags of neighbouring collectives differ, so that control operations of another thread cannot be mixed up.
int Exchange::greeting_tag() const { return static_cast<int>(operation_.sequence % 8000) * 2; }
int Exchange::data_tag() const { return greeting_tag() + 1; }

Exchange::Flow& Exchange::send(int peer, std::vector<MessagePiece> pieces, const int64_t* limit) {
  Flow& flow = flows_.emplace_back();
  flow.peer = peer;
  flow.sending = true;
  flow.limit = limit;
  flow.pieces = std::move(pieces);
  for (const MessagePiece& piece : flow.pieces) peers_[static_cast<size_t>(peer)].payload += piece.bytes;
  return flow;
}

Exchange::Flow& Exchange::receive(int peer, std::vector<MessagePiece> pieces, const int64_t* limit) {
  Flow& flow = flows_.emplace_back();
  flow.peer = peer;
  flow.limit = limit;
  flow.pieces = std::move(pieces);
  int64_t bytes = 0;
  for (const MessagePiece& piece : flow.pieces) bytes += piece.bytes;
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (!from.heard) from.expected = std::max<int64_t>(from.expected, 0) + bytes;
  return flow;
}

Exchange::Flow& Exchange::receive(int peer, std::function<char*(int64_t bytes)> place) {
  Flow& flow = flows_.emplace_back();
  flow.peer = peer;
  flow.place = std::move(place);
  return flow;
}

void Exchange::run(const std::function<bool()>& work) {
  group_.check();
  try {
    drive(work);
  } catch (const CommunicationError& error) {
    fail(error.what());
  } catch (...) {
    group_.keep(shared_from_this());
    throw;
  }
  flows_.clear();
}

void Exchange::fail(const std::string& message) {
  group_.keep(shared_from_this());
  group_.fail(message);
}

void Exchange::drive(const std::function<bool()>& work) {
  for (Flow& flow : flows_) {
    Peer& peer = peers_[static_cast<size_t>(flow.peer)];
    if (flow.sending && !peer.greeted) {
      peer.greeted = true;
      peer.outgoing = make_greeting(operation_, peer.payload);
      peer.sent = group_.transport().send(&peer.outgoing, sizeof(Greeting), flow.peer, greeting_tag());
    }
    if (!flow.sending && !peer.heard && !peer.received)
      peer.received = group_.transport().receive(&peer.incoming, sizeof(Greeting), flow.peer, greeting_tag());
  }
  Backoff backoff;
  auto last_slow_check = std::chrono::steady_clock::now();
  while (true) {
    bool moved = false;
    bool finished = true;
    for (Flow& flow : flows_) {
      moved |= advance(flow);
      const Peer& peer = peers_[static_cast<size_t>(flow.peer)];
      finished &= flow.finished() && (flow.sending ? peer.sent == nullptr : peer.heard);
    }
    if (work) moved |= work();
    if (finished) return;
    if (moved) {
      backoff.reset();
      continue;
    }
    backoff.pause();
    const auto now = std::chrono::steady_clock::now();
    if (now - last_slow_check < std::chrono::milliseconds(2)) continue;
    last_slow_check = now;
    group_.check();
    throw_if_another_gave_up(group_);
    if (deadline_.passed(now)) expire(group_, operation_, deadline_.seconds(), waiting_for());
  }
}

bool Exchange::done(MessageRequest& request, int peer) const {
  try {
    return request.done();
  } catch (const CommunicationError& error) {
    throw CommunicationError(
        text(operation_.describe(), " of group \"", group_.name(), "\", messages with ", group_.who(peer), ": ", error.what()));
  }
}

bool Exchange::advance_greeting(Flow& flow) {
  Peer& peer = peers_[static_cast<size_t>(flow.peer)];
  if (flow.sending) {
    if (!peer.sent || !done(*peer.sent, flow.peer)) return false;
    peer.sent.reset();
    return true;
  }
  if (peer.heard || !done(*peer.received, flow.peer)) return false;
  check_greeting(flow.peer);
  peer.received.reset();
  peer.heard = true;
  return true;
}

bool Exchange::advance(Flow& flow) {
  bool moved = advance_greeting(flow);
  Peer& peer = peers_[static_cast<size_t>(flow.peer)];
  if (!flow.sending && !peer.heard) return moved;
  if (flow.place) {
    char* data = flow.place(peer.incoming.payload);
    append_pieces(flow.pieces, data, peer.incoming.payload, int64_t{1} << 20);
    flow.place = nullptr;
  }
  while (!flow.in_flight.empty() && done(*flow.in_flight.front(), flow.peer)) {
    flow.in_flight.pop_front();
    ++flow.completed;
    moved = true;
  }
  const int64_t limit = std::min(static_cast<int64_t>(flow.pieces.size()), flow.limit ? *flow.limit : flow.started + messages_in_flight);
  while (flow.started < limit && static_cast<int64_t>(flow.in_flight.size()) < messages_in_flight) {
    const MessagePiece& piece = flow.pieces[static_cast<size_t>(flow.started++)];
    if (flow.sending) {
      flow.in_flight.push_back(group_.transport().send(piece.data, piece.bytes, flow.peer, data_tag()));
      group_.count_sent(piece.bytes, flow.peer);
    } else {
      flow.in_flight.push_back(group_.transport().receive(piece.data, piece.bytes, flow.peer, data_tag()));
    }
    moved = true;
  }
  return moved;
}

void Exchange::check_greeting(int peer) {
  const Peer& from = peers_[static_cast<size_t>(peer)];
  check_same_call(group_, operation_, from.incoming, peer);
  if (from.expected >= 0 && from.expected != from.incoming.payload)
    throw CommunicationError(text(operation_.describe(), " of group \"", group_.name(), "\": ", group_.who(peer), " sends ",
                                  from.incoming.payload, " bytes to ", group_.who(group_.rank()), ", which expects ", from.expected,
                                  "; the cuts of both ranks must agree"));
}

std::vector<std::string> Exchange::waiting_for() {
  std::vector<std::string> result;
  for (int rank = 0; rank < group_.size(); ++rank) {
    bool unheard = false;
    bool incoming = false;
    bool outgoing = false;
    for (const Flow& flow : flows_) {
      if (flow.peer != rank) continue;
      const Peer& peer = peers_[static_cast<size_t>(rank)];
      if (flow.sending) {
        outgoing |= !flow.finished() || peer.sent;
      } else {
        unheard |= !peer.heard;
        incoming |= peer.heard && !flow.finished();
      }
    }
    if (unheard)
      result.push_back(text(group_.who(rank), ", which has not entered"));
    else if (incoming)
      result.push_back(text(group_.who(rank), ", whose data is incomplete"));
    else if (outgoing)
      result.push_back(text(group_.who(rank), ", which has not taken our data"));
  }
  return result;
}

}  // namespace dmuon
