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
  for (int rank = 0; rank < world.size(); ++rank) pieces_.push_back(model.plan().pieces(model.grid().slot_of(rank)));
  std::vector<int> holders(model.inventory().parameters().size(), 0);
  for (const auto& pieces : pieces_)
    for (const Piece& piece : pieces) ++holders[static_cast<size_t>(piece.tensor)];
  for (size_t t = 0; t < holders.size(); ++t) {
    const int rule = model.rules().rule_of[t];
    if (holders[t] < 2) continue;
    const ParameterDeclaration& parameter = model.inventory().parameters()[t];
    const int writer = model.grid().rank_of_slot(model.plan().owners[t]);
    items_.push_back({parameter.name, static_cast<int>(t), -1, writer, parameter.shape.elements()});
    if (rule < 0) continue;
    const auto states = model.rules().rules[static_cast<size_t>(rule)]->state();
    for (size_t s = 0; s < states.size(); ++s)
      items_.push_back(
          {state_key(parameter.name, states[s].name), static_cast<int>(t), static_cast<int>(s), writer, parameter.shape.elements()});
  }
  std::sort(items_.begin(), items_.end(),
            [](const Item& a, const Item& b) { return (a.state >= 0) != (b.state >= 0) ? a.state < 0 : a.key < b.key; });
}

// Every rank sends its part of the current chunk to the item's writer, which puts the parts in the order of the tensor.
void StateGather::exchange_chunk() {
  const Item& item = items_[item_];
  const int64_t first = chunk_ * chunk_elements, last = std::min(item.elements, first + chunk_elements);
  const bool writer = item.writer == world_.rank();
  const auto ranks = static_cast<size_t>(world_.size());
  std::vector<int64_t> send_cuts(ranks + 1, 0), receive_cuts(ranks + 1, 0);
  for (size_t r = 0; r < ranks; ++r)
    receive_cuts[r + 1] = receive_cuts[r] + (writer ? overlap(pieces_[r], item.tensor, first, last).count : 0);
  const Piece mine = overlap(pieces_[static_cast<size_t>(world_.rank())], item.tensor, first, last);
  for (size_t r = 0; r < ranks; ++r) send_cuts[r + 1] = send_cuts[r] + (static_cast<int>(r) == item.writer ? mine.count : 0);

  Stream& stream = backend_.compute_stream();
  Tensor send = backend_.allocate(Shape{0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  for (const HeldPiece& held : model_.held())
    if (held.piece.tensor == item.tensor && mine.count > 0)
      send = (item.state < 0 ? held.master : held.state[static_cast<size_t>(item.state)]).flat(mine.first - held.piece.first, mine.count);
  Tensor receive = backend_.allocate(Shape{writer ? last - first : 0}, DType::float32, MemoryCategory::communication, "checkpoint chunk");
  world_.all_to_all_v(stream, send, send_cuts, receive, receive_cuts);
  if (writer) {
    std::vector<float> received(static_cast<size_t>(last - first));
    staging_.resize(received.size());
    backend_.copy_to_host(stream, receive, received.data());
    for (size_t r = 0; r < ranks; ++r) {
      const Piece part = overlap(pieces_[r], item.tensor, first, last);
      std::copy_n(received.begin() + receive_cuts[r], part.count, staging_.begin() + (part.first - first));
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
