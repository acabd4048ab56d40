#include "train/state_gather.h"

#include <algorithm>
#include <cstring>

#include "dmuon/core/checked.h"
#include "dmuon/io/checkpoint.h"

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
  const auto& parameters = model.inventory().parameters();
  std::vector<std::vector<int>> whole(parameters.size());  // ranks that hold all of a tensor
  writers_.assign(parameters.size(), 0);
  for (int rank = 0; rank < world.size(); ++rank)
    for (const Piece& piece : pieces_[static_cast<size_t>(rank)]) {
      const auto tensor = static_cast<size_t>(piece.tensor);
      if (piece.first == 0) writers_[tensor] = rank;
      if (piece.count == parameters[tensor].shape.elements()) whole[tensor].push_back(rank);
    }
  std::vector<Item> states;
  for (size_t t = 0; t < parameters.size(); ++t) {
    if (!whole[t].empty()) {
      writers_[t] = whole[t][t % whole[t].size()];
      continue;
    }
    const int64_t elements = parameters[t].shape.elements();
    items_.push_back({parameters[t].name, static_cast<int>(t), master, elements});
    const int rule = model.rules().rule_of[t];
    if (rule < 0) continue;
    const auto specifications = model.rules().rules[static_cast<size_t>(rule)]->state();
    for (size_t s = 0; s < specifications.size(); ++s)
      states.push_back({state_key(parameters[t].name, specifications[s].name), static_cast<int>(t), static_cast<int>(s), elements});
  }
  const auto by_key = [](const Item& a, const Item& b) { return a.key < b.key; };
  std::sort(items_.begin(), items_.end(), by_key);
  std::sort(states.begin(), states.end(), by_key);
  items_.insert(items_.end(), states.begin(), states.end());
}

// Every rank sends its part of the current chunk to the item's writer.
void StateGather::exchange_chunk() {
  const Item& item = items_[item_];
  const int64_t first = chunk_ * chunk_elements, last = std::min(item.elements, first + chunk_elements);
  const int destination = writers_[static_cast<size_t>(item.tensor)];
  const bool writer = destination == world_.rank();
  const auto ranks = static_cast<size_t>(world_.size());
  std::vector<int64_t> send_cuts(ranks + 1, 0), receive_cuts(ranks + 1, 0);
  for (size_t r = 0; r < ranks; ++r)
    receive_cuts[r + 1] = receive_cuts[r] + (writer ? overlap(pieces_[r], item.tensor, first, last).count : 0);
  const Piece mine = overlap(pieces_[static_cast<size_t>(world_.rank())], item.tensor, first, last);
  for (size_t r = 0; r < ranks; ++r) send_cuts[r + 1] = send_cuts[r] + (static_cast<int>(r) == destination ? mine.count : 0);

  Stream& stream = backend_.compute_stream();
  Tensor send = backend_.allocate(Shape{0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  for (const HeldPiece& held : model_.held())
    if (held.piece.tensor == item.tensor && mine.count > 0) {
      const Tensor& values = item.state == master ? held.master : held.state[static_cast<size_t>(item.state)];
      send = values.flat(mine.first - held.piece.first, mine.count);
    }
  Tensor receive = backend_.allocate(Shape{writer ? last - first : 0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  world_.all_to_all_v(stream, send, send_cuts, receive, receive_cuts);
  if (writer) {
    std::vector<float> arrived(static_cast<size_t>(last - first));
    backend_.copy_to_host(stream, receive, arrived.data());
    // Slots of neighbouring ranges belong to ranks of any order.
    staging_.resize(arrived.size());
    for (size_t r = 0; r < ranks; ++r) {
      const Piece piece = overlap(pieces_[r], item.tensor, first, last);
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
