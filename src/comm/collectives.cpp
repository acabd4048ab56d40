#include "comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/reduction.h"
#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

constexpr int64_t piece_bytes = int64_t{1} << 20;
constexpr int64_t large_broadcast_bytes = int64_t{256} << 10;
constexpr int64_t small_all_reduce_bytes = int64_t{16} << 10;
constexpr int64_t staging_bytes = int64_t{8} << 20;
constexpr int64_t slots_per_peer = 3;  // one being added, two arriving
constexpr int most_ranks_of_direct_barrier = 16;
constexpr int most_ranks_of_direct_gather = 8;

std::vector<MessagePiece> pieces_of(char* data, int64_t first, int64_t last, int64_t size = piece_bytes) {
  std::vector<MessagePiece> pieces;
  append_pieces(pieces, data + first, last - first, size);
  return pieces;
}

// Peers in an order that spreads the load: every rank starts with its right neighbour.
int peer_at(const Exchange& exchange, int distance) { return (exchange.group().rank() + distance) % exchange.group().size(); }

void gather_directly(Exchange& exchange, char* buffer, std::span<const int64_t> cuts) {
  const size_t rank = static_cast<size_t>(exchange.group().rank());
  for (int distance = 1; distance < exchange.group().size(); ++distance) {
    const int to = peer_at(exchange, distance);
    const int from = peer_at(exchange, exchange.group().size() - distance);
    exchange.send(to, pieces_of(buffer, cuts[rank], cuts[rank + 1]));
    exchange.receive(from, pieces_of(buffer, cuts[static_cast<size_t>(from)], cuts[static_cast<size_t>(from) + 1]));
  }
  exchange.run();
}

void gather_by_ring(Exchange& exchange, char* buffer, std::span<const int64_t> cuts) {
  const int size = exchange.group().size();
  std::vector<MessagePiece> outgoing;
  std::vector<MessagePiece> incoming;
  int64_t own = 0;
  for (int step = 0; step < size; ++step) {
    const size_t segment = static_cast<size_t>(peer_at(exchange, size - step));
    if (step > 0) append_pieces(incoming, buffer + cuts[segment], cuts[segment + 1] - cuts[segment], piece_bytes);
    if (step + 1 < size) append_pieces(outgoing, buffer + cuts[segment], cuts[segment + 1] - cuts[segment], piece_bytes);
    if (step == 0) own = static_cast<int64_t>(outgoing.size());
  }
  int64_t available = own;
  const Exchange::Flow& left = exchange.receive(peer_at(exchange, size - 1), std::move(incoming));
  exchange.send(peer_at(exchange, 1), std::move(outgoing), &available);
  exchange.run([&] {
    const int64_t before = available;
    available = own + left.completed;
    return available != before;
  });
}

}  // namespace

void run_barrier(Exchange& exchange) {
  const int size = exchange.group().size();
  if (size <= most_ranks_of_direct_barrier) {
    for (int distance = 1; distance < size; ++distance) {
      exchange.send(peer_at(exchange, distance), std::vector<MessagePiece>{});
      exchange.receive(peer_at(exchange, size - distance), std::vector<MessagePiece>{});
    }
    return exchange.run();
  }
  for (int distance = 1; distance < size; distance *= 2) {
    exchange.send(peer_at(exchange, distance), std::vector<MessagePiece>{});
    exchange.receive(peer_at(exchange, size - distance), std::vector<MessagePiece>{});
    exchange.run();
  }
}

void run_broadcast(Exchange& exchange, char* data, int64_t bytes, int root) {
  const int size = exchange.group().size();
  const int place = (exchange.group().rank() - root + size) % size;  // the root's is 0
  const auto rank_at = [&](int p) { return (p + root) % size; };
  const std::vector<MessagePiece> pieces = pieces_of(data, 0, bytes);

  int parent = place - 1;
  std::vector<int> children;
  if (bytes > large_broadcast_bytes) {
    if (place + 1 < size) children.push_back(place + 1);
  } else {
    int bit = 1;
    while (bit < size && (place & bit) == 0) bit *= 2;
    parent = place - bit;
    for (bit /= 2; bit > 0; bit /= 2)
      if (place + bit < size) children.push_back(place + bit);
  }

  int64_t available = place == 0 ? static_cast<int64_t>(pieces.size()) : 0;
  const Exchange::Flow* incoming = place == 0 ? nullptr : &exchange.receive(rank_at(parent), pieces);
  for (int child : children) exchange.send(rank_at(child), pieces, &available);
  exchange.run([&] {
    const int64_t before = available;
    if (incoming) available = incoming->completed;
    return available != before;
  });
}

namespace {

void gather_by_broadcasts(Exchange& exchange, char* buffer, std::span<const int64_t> cuts) {
  for (int root = 0; root < exchange.group().size(); ++root) {
    const int64_t first = cuts[static_cast<size_t>(root)];
    run_broadcast(exchange, buffer + first, cuts[static_cast<size_t>(root) + 1] - first, root);
  }
}

void gather_padded(Exchange& exchange, char* buffer, std::span<const int64_t> cuts) {
  const int size = exchange.group().size();
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) longest = std::max(longest, cuts[r + 1] - cuts[r]);
  const int64_t share = round_up(longest, 64);
  char* staging = exchange.stage(share * size, "a padded all-gather");
  std::vector<int64_t> equal_cuts;
  for (int r = 0; r <= size; ++r) equal_cuts.push_back(r * share);
  const auto copy = [&](int r, bool in) {
    const int64_t first = cuts[static_cast<size_t>(r)];
    const auto bytes = static_cast<size_t>(cuts[static_cast<size_t>(r) + 1] - first);
    if (bytes > 0) std::memcpy(in ? staging + r * share : buffer + first, in ? buffer + first : staging + r * share, bytes);
  };
  copy(exchange.group().rank(), true);
  run_all_gather_v(exchange, staging, equal_cuts, GatherForm::all_gather);
  for (int r = 0; r < size; ++r)
    if (r != exchange.group().rank()) copy(r, false);
}

}  // namespace

void run_all_gather_v(Exchange& exchange, char* buffer, std::span<const int64_t> cuts, GatherForm form) {
  if (form == GatherForm::broadcasts) return gather_by_broadcasts(exchange, buffer, cuts);
  if (form == GatherForm::padded) return gather_padded(exchange, buffer, cuts);
  if (exchange.group().size() <= most_ranks_of_direct_gather)
    gather_directly(exchange, buffer, cuts);
  else
    gather_by_ring(exchange, buffer, cuts);
}

void run_reduce_scatter_v(Exchange& exchange, const Reduction& reduction, char* buffer, std::span<const int64_t> cuts, char* result,
                          bool accumulate) {
  const int size = exchange.group().size();
  const size_t rank = static_cast<size_t>(exchange.group().rank());
  const int64_t peers = size - 1;
  // The same on every rank: sender and receiver cut alike.
  const int64_t chunk =
      std::clamp(staging_bytes / (slots_per_peer * std::max<int64_t>(peers, 1)) / 4096 * 4096, int64_t{64} << 10, int64_t{256} << 10);
  char* own = buffer + cuts[rank];
  const int64_t own_bytes = cuts[rank + 1] - cuts[rank];
  const int64_t chunks = divide_up(own_bytes, chunk);
  const int64_t slots = std::min(slots_per_peer, chunks);
  const int64_t slot_bytes = std::min(chunk, round_up(own_bytes, 64));
  char* staging = exchange.stage(peers * slots * slot_bytes, "pieces of a reduction");

  int64_t limit = slots;
  std::vector<const Exchange::Flow*> incoming(static_cast<size_t>(size));
  std::vector<char*> first_slot(static_cast<size_t>(size));
  for (int distance = 1; distance < size; ++distance) {
    const size_t to = static_cast<size_t>(peer_at(exchange, distance));
    exchange.send(static_cast<int>(to), pieces_of(buffer, cuts[to], cuts[to + 1], chunk));
    const size_t from = static_cast<size_t>(peer_at(exchange, size - distance));
    first_slot[from] = staging + (distance - 1) * slots * slot_bytes;
    std::vector<MessagePiece> pieces;
    for (int64_t c = 0; c < chunks; ++c)
      pieces.push_back({first_slot[from] + c % slots * slot_bytes, std::min(chunk, own_bytes - c * chunk)});
    incoming[from] = &exchange.receive(static_cast<int>(from), std::move(pieces), &limit);
  }

  int64_t added = 0;
  std::vector<const void*> sources(static_cast<size_t>(size));
  exchange.run([&] {
    const int64_t before = added;
    while (added < chunks) {
      for (size_t r = 0; r < sources.size(); ++r) {
        if (r == rank) {
          sources[r] = own + added * chunk;
          continue;
        }
        if (incoming[r]->completed <= added) return added != before;
        sources[r] = first_slot[r] + added % slots * slot_bytes;
      }
      const int64_t bytes = std::min(chunk, own_bytes - added * chunk);
      const int64_t first = added * chunk / size_of(reduction.dtype);
      reduce_in_order(reduction, sources, bytes / size_of(reduction.dtype), result + first * size_of(reduction.result), accumulate);
      ++added;
      limit = added + slots;
    }
    return added != before;
  });
}

void run_all_reduce(Exchange& exchange, DType dtype, ReduceOperation operation, char* data, int64_t elements) {
  const Reduction reduction{dtype, dtype, operation};
  const int size = exchange.group().size();
  const int64_t bytes = elements * size_of(dtype);
  std::vector<int64_t> cuts;
  if (bytes <= small_all_reduce_bytes) {
    char* staging = exchange.stage(bytes * size, "an all-reduce");
    for (int r = 0; r <= size; ++r) cuts.push_back(r * bytes);
    std::vector<const void*> sources;
    for (int r = 0; r < size; ++r) sources.push_back(staging + r * bytes);
    if (bytes > 0) std::memcpy(staging + exchange.group().rank() * bytes, data, static_cast<size_t>(bytes));
    run_all_gather_v(exchange, staging, cuts);
    return reduce_in_order(reduction, sources, elements, data, false);
  }
  const int64_t share = round_up(divide_up(elements, size), 64);
  for (int r = 0; r <= size; ++r) cuts.push_back(std::min(elements, r * share) * size_of(dtype));
  run_reduce_scatter_v(exchange, reduction, data, cuts, data + cuts[static_cast<size_t>(exchange.group().rank())], false);
  run_all_gather_v(exchange, data, cuts);
}

void run_all_to_all_v(Exchange& exchange, char* send, std::span<const int64_t> send_cuts, char* receive,
                      std::span<const int64_t> receive_cuts) {
  const size_t rank = static_cast<size_t>(exchange.group().rank());
  for (int distance = 1; distance < exchange.group().size(); ++distance) {
    const size_t to = static_cast<size_t>(peer_at(exchange, distance));
    exchange.send(static_cast<int>(to), pieces_of(send, send_cuts[to], send_cuts[to + 1]));
    const size_t from = static_cast<size_t>(peer_at(exchange, exchange.group().size() - distance));
    exchange.receive(static_cast<int>(from), pieces_of(receive, receive_cuts[from], receive_cuts[from + 1]));
  }
  const int64_t own = send_cuts[rank + 1] - send_cuts[rank];
  if (own > 0) std::memmove(receive + receive_cuts[rank], send + send_cuts[rank], static_cast<size_t>(own));
  exchange.run();
}

std::vector<std::string> run_all_gather_text(Exchange& exchange, std::shared_ptr<std::string> mine) {
  const int size = exchange.group().size();
  const auto texts = std::make_shared<std::vector<std::string>>(static_cast<size_t>(size));
  exchange.keep(mine);
  exchange.keep(texts);
  for (int distance = 1; distance < size; ++distance) {
    exchange.send(peer_at(exchange, distance), pieces_of(mine->data(), 0, static_cast<int64_t>(mine->size())));
    std::string& theirs = (*texts)[static_cast<size_t>(peer_at(exchange, size - distance))];
    exchange.receive(peer_at(exchange, size - distance), [&theirs](int64_t bytes) {
      theirs.resize(static_cast<size_t>(bytes));
      return theirs.data();
    });
  }
  exchange.run();
  (*texts)[static_cast<size_t>(exchange.group().rank())] = *mine;
  return *texts;
}

std::string run_broadcast_text(Exchange& exchange, std::shared_ptr<std::string> mine, int root) {
  exchange.keep(mine);
  if (exchange.group().rank() == root) {
    for (int distance = 1; distance < exchange.group().size(); ++distance)
      exchange.send(peer_at(exchange, distance), pieces_of(mine->data(), 0, static_cast<int64_t>(mine->size())));
  } else {
    exchange.receive(root, [&mine = *mine](int64_t bytes) {
      mine.resize(static_cast<size_t>(bytes));
      return mine.data();
    });
  }
  exchange.run();
  return *mine;
}

}  // namespace dmuon
