#include "train/state_gather.h"

#include <algorithm>
#include <cstring>

#include "dmuon/core/checked.h"
#include "dmuon/io/checkpoint.h"
#include "train/local_state.h"

namespace dmuon {
namespace {

constexpr int64_t chunk_elements = int64_t{1} << 20;

// Part of [first, last) that lies in rank's piece of the tensor.
Piece overlap(const std::vector<Piece>& pieces, int tensor, int64_t first, int64_t last) {
  for (const Piece& piece : pieces)
    if (piece.tensor == tensor) {
      const int64_t begin = std::max(first, piece.first), end = std::min(last, piece.first + piece.count);
      if (begin < end) return {tensor, piece.unit, begin, end - begin, 0};
    }
  return {tensor, 0, first, 0, 0};
}

}  // namespace

StateGather::StateGather(Backend& backend, Communicator& world, ShardedModel& model) : backend_(backend), world_(world), model_(model) {
  const auto& parameters = model.inventory().parameters();
  Json mine = Json::array();
  for (const HeldPiece& held : model.held())
    for (const int64_t value : {int64_t{held.piece.tensor}, held.piece.first, held.piece.count}) mine.push_back(value);
  for (const std::string& all : world.all_gather_text(mine.dump())) {
    const Json values = parse_json(all, "pieces of a rank");
    const Json::Array& list = values.as_array();
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (size_t i = 0; i + 2 < list.size(); i += 3)
      pieces.push_back({static_cast<int>(list[i].as_integer()), 0, list[i + 1].as_integer(), list[i + 2].as_integer(), 0});
  }
  std::vector<Item> states;
  for (size_t t = 0; t < parameters.size(); ++t) {
    const int tensor = static_cast<int>(t), rule = model.rules().rule_of[t], replicas = model.grid().replicas;
    const bool voted = is_voted(model.rules(), tensor);
    std::vector<Holders>& all = holders_.emplace_back();
    for (int replica = 0; replica < (voted ? replicas : 1); ++replica) all.push_back(find_holders(tensor, voted ? replica : all_replicas));
    sources_.push_back(voted ? tensor % replicas : all_replicas);  // spreads the writing
    const int64_t elements = parameters[t].shape.elements();
    const auto add = [&](std::vector<Item>& items, std::string key, int state, int replica) {
      if (!holders(tensor, replica).whole) items.push_back({std::move(key), tensor, state, replica, elements});
    };
    add(items_, parameters[t].name, master, source(tensor));
    if (rule < 0) continue;
    const auto specifications = model.rules().rules[static_cast<size_t>(rule)]->state();
    for (size_t s = 0; s < specifications.size(); ++s) {
      const int state = static_cast<int>(s);
      if (voted && specifications[s].local)
        for (int replica = 0; replica < replicas; ++replica)
          add(states, state_key(parameters[t].name, specifications[s].name, replica), state, replica);
      else
        add(states, state_key(parameters[t].name, specifications[s].name), state, source(tensor));
    }
  }
  const auto by_key = [](const Item& a, const Item& b) { return a.key < b.key; };
  std::sort(items_.begin(), items_.end(), by_key);
  std::sort(states.begin(), states.end(), by_key);
  items_.insert(items_.end(), states.begin(), states.end());
}

StateGather::Holders StateGather::find_holders(int tensor, int replica) const {
  const int64_t elements = model_.inventory().parameters()[static_cast<size_t>(tensor)].shape.elements();
  std::vector<int> whole;
  Holders found;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (replica != all_replicas && model_.grid().replica_of(rank) != replica) continue;
    for (const Piece& piece : pieces_[static_cast<size_t>(rank)]) {
      if (piece.tensor != tensor) continue;
      if (piece.first == 0) found.writer = rank;
      if (piece.count == elements) whole.push_back(rank);
    }
  }
  found.whole = !whole.empty();
  if (found.whole) found.writer = whole[static_cast<size_t>(tensor) % whole.size()];
  return found;
}

const StateGather::Holders& StateGather::holders(int tensor, int replica) const {
  return holders_[static_cast<size_t>(tensor)][replica == all_replicas ? 0 : static_cast<size_t>(replica)];
}

int StateGather::writer(int tensor, int replica) const { return holders(tensor, replica).writer; }

Piece StateGather::part(int rank, const Item& item, int64_t first, int64_t last) const {
  if (item.replica != all_replicas && model_.grid().replica_of(rank) != item.replica) return {item.tensor, 0, first, 0, 0};
  return overlap(pieces_[static_cast<size_t>(rank)], item.tensor, first, last);
}

// Every rank sends its part of the current chunk to the item's writer.
void StateGather::exchange_chunk() {
  const Item& item = items_[item_];
  const int64_t first = chunk_ * chunk_elements, last = std::min(item.elements, first + chunk_elements);
  const int destination = writer(item.tensor, item.replica);
  const bool receives = destination == world_.rank();
  const auto ranks = static_cast<size_t>(world_.size());
  std::vector<int64_t> send_cuts(ranks + 1, 0), receive_cuts(ranks + 1, 0);
  for (size_t r = 0; r < ranks; ++r)
    receive_cuts[r + 1] = receive_cuts[r] + (receives ? part(static_cast<int>(r), item, first, last).count : 0);
  const Piece mine = part(world_.rank(), item, first, last);
  for (size_t r = 0; r < ranks; ++r) send_cuts[r + 1] = send_cuts[r] + (static_cast<int>(r) == destination ? mine.count : 0);

  Stream& stream = backend_.compute_stream();
  Tensor send = backend_.allocate(Shape{0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  for (const HeldPiece& held : model_.held())
    if (held.piece.tensor == item.tensor && mine.count > 0) {
      const Tensor& values = item.state == master ? held.master : held.state[static_cast<size_t>(item.state)];
      send = values.flat(mine.first - held.piece.first, mine.count);
    }
  Tensor receive = backend_.allocate(Shape{receives ? last - first : 0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  world_.all_to_all_v(stream, send, send_cuts, receive, receive_cuts);
  if (receives) {
    std::vector<float> arrived(static_cast<size_t>(last - first));
    backend_.copy_to_host(stream, receive, arrived.data());
    // Slots of neighbouring ranges belong to ranks of any order.
    staging_.resize(arrived.size());
    for (size_t r = 0; r < ranks; ++r) {
      const Piece piece = part(static_cast<int>(r), item, first, last);
      std::copy_n(arrived.begin() + receive_cuts[r], piece.count, staging_.begin() + (piece.first - first));
    }
    held_item_ = item_;
    held_chunk_ = chunk_;
  } else {
    stream.synchronize();
  }
  if (last == item.elements) {
    ++item_;
    chunk_ = 0;
  } else {
    ++chunk_;
  }
}

void StateGather::advance_to(size_t index, int64_t chunk) {
  while (item_ < index || (item_ == index && chunk_ <= chunk)) exchange_chunk();
}

void StateGather::read(size_t index, int64_t first, int64_t count, float* destination) {
  while (count > 0) {
    const int64_t chunk = first / chunk_elements;
    if (held_item_ != index || held_chunk_ != chunk) advance_to(index, chunk);
    const int64_t inside = first - chunk * chunk_elements;
    const int64_t part = std::min(count, static_cast<int64_t>(staging_.size()) - inside);
    std::memcpy(destination, staging_.data() + inside, static_cast<size_t>(part) * sizeof(float));
    destination += part;
    first += part;
    count -= part;
  }
}

void StateGather::finish() {
  while (item_ < items_.size()) exchange_chunk();
}

}  // namespace dmuon
