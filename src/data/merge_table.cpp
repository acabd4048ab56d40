#include "data/merge_table.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace dmuon {
namespace {

constexpr size_t short_word = 48;

}  // namespace

MergeTable::MergeTable(int64_t expected) {
  const size_t size = std::bit_ceil(static_cast<size_t>(2 * expected + 16));
  shift_ = 64 - std::countr_zero(size);
  mask_ = size - 1;
  entries_.resize(size);
}

bool MergeTable::add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = place(key);
  for (; entries_[at].key != empty; at = (at + 1) & mask_)
    if (entries_[at].key == key) return false;
  entries_[at] = {key, merge};
  return true;
}

void MergeTable::apply(std::vector<int32_t>& ids) const {
  if (ids.size() < 2) return;
  ids.size() <= short_word ? apply_short(ids) : apply_long(ids);
}

void MergeTable::apply_short(std::vector<int32_t>& ids) const {
  Merge merges[short_word];  // merges[i]: of ids[i] and ids[i + 1]
  size_t pairs = ids.size() - 1;
  for (size_t i = 0; i < pairs; ++i) merges[i] = find(ids[i], ids[i + 1]);
  while (pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < pairs; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == none) break;
    ids[best] = merges[best].result;
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(best) + 2, ids.begin() + static_cast<std::ptrdiff_t>(pairs) + 1,
              ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(merges + best + 1, merges + pairs, merges + best);
    --pairs;
    if (best > 0) merges[best - 1] = find(ids[best - 1], ids[best]);
    if (best < pairs) merges[best] = find(ids[best], ids[best + 1]);
  }
  ids.resize(pairs + 1);
}

void MergeTable::apply_long(std::vector<int32_t>& ids) const {
  struct Node {
    int64_t before, after;
    int32_t id;  // -1: merged into the one before it
  };
  struct Candidate {
    int32_t rank;
    int64_t at;
    int32_t left, right, result;
    // Turned round: the queue's top is its largest.
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const int64_t size = std::ssize(ids);
  std::vector<Node> nodes(ids.size());
  for (int64_t i = 0; i < size; ++i) nodes[static_cast<size_t>(i)] = {i - 1, i + 1 < size ? i + 1 : -1, ids[static_cast<size_t>(i)]};
  const auto node = [&](int64_t i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  std::vector<Candidate> found;
  found.reserve(ids.size());
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(found));
  const auto offer = [&](int64_t at) {
    const int32_t left = node(at).id, right = node(node(at).after).id;
    if (const Merge merge = find(left, right); merge.rank != none) queue.push({merge.rank, at, left, right, merge.result});
  };
  for (int64_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& left = node(best.at);
    // The pair may have changed since it was queued.
    if (left.id != best.left || left.after < 0 || node(left.after).id != best.right) continue;
    Node& right = node(left.after);
    left.id = best.result;
    left.after = right.after;
    right.id = -1;
    if (left.after >= 0) node(left.after).before = best.at;
    if (left.before >= 0) offer(left.before);
    if (left.after >= 0) offer(best.at);
  }
  ids.clear();
  for (int64_t i = 0; i >= 0; i = node(i).after) ids.push_back(node(i).id);
}

}  // namespace dmuon
