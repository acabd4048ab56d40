// What the transports share, and making one: agreement of the ranks, the choice, and the group of one.
#include <algorithm>
#include <map>

#include "comm/vote/transports.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace vote {
namespace {

// Nothing to count: the only worker's votes are the result.
class Alone final : public Transport {
 public:
  using Transport::Transport;
  void count(Stream&, const Tensor&, int64_t, int) override {}
};

void check_equal_requests(Communicator& group, VoteTransportKind kind, int64_t words) {
  const std::vector<std::string> requests = group.all_gather_text(text(name_of(kind), " on ", words, " words"));
  for (size_t r = 1; r < requests.size(); ++r)
    if (requests[r] != requests[0])
      throw CommunicationError(text("ranks of a vote disagree: rank 0 (", group.host(0), ") asks for ", requests[0], ", rank ", r, " (",
                                    group.host(static_cast<int>(r)), ") for ", requests[r],
                                    "; start every rank with the same configuration"));
}

// What is to be known of a transport that was asked for.
std::string forced_text(VoteTransportKind kind, int workers) {
  const std::string note = kind == VoteTransportKind::int8_sum ? vote_sum_note(workers) : "";
  return note.empty() ? text(name_of(kind), ": as configured") : note;
}

}  // namespace

Transport::Transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words, std::string choice)
    : backend_(backend), group_(group), kind_(kind), most_words_(words), choice_(std::move(choice)) {}

Tensor Transport::scratch(Communicator& group, int64_t elements, DType dtype, const char* name) {
  return group.allocate(backend_, {elements}, dtype, MemoryCategory::communication, name);
}

void Transport::vote(Stream& stream, const Tensor& words, int64_t any_words, int64_t step) {
  if (words.dtype() != DType::int64 || words.elements() > most_words_ || any_words < 0 || any_words > words.elements() || step < 0)
    throw ShapeError(text("vote of rank ", group_.rank(), " (", group_.host(group_.rank()), ") at step ", step, " on ", words.to_string(),
                          " with ", any_words, " header words; the transport was made for int64[", most_words_, "] at most"));
  count(stream, words.flat(), any_words, group_.size() % 2 == 0 ? static_cast<int>(step % group_.size()) : -1);
}

std::vector<int64_t> slice_cuts(int64_t words, int owners) {
  // words / owners first: the product of words and owners may exceed 63 bits.
  std::vector<int64_t> cuts;
  for (int64_t i = 0; i <= owners; ++i) cuts.push_back(words / owners * i + words % owners * i / owners);
  return cuts;
}

std::vector<int64_t> equal_cuts(int64_t length, int ranks) {
  std::vector<int64_t> cuts;
  for (int r = 0; r <= ranks; ++r) cuts.push_back(r * length);
  return cuts;
}

int64_t any_words_of(int64_t any_words, int64_t first, int64_t count) { return std::clamp<int64_t>(any_words - first, 0, count); }

NodeGroups split_by_nodes(Communicator& group) {
  const int node = group.node(group.rank());
  int place = 0;
  for (int r = 0; r < group.rank(); ++r) place += group.node(r) == node;
  NodeGroups groups;
  groups.node = group.split(node, group.rank(), "votes in the node");
  groups.column = group.split(place, node, "votes between nodes");
  return groups;
}

bool has_levels(const VoteSize& size) { return size.nodes > 1 && size.nodes < size.workers; }

std::unique_ptr<VoteTransport> make(Backend& backend, Communicator& group, VoteTransportKind kind, const NodeGroups& groups, int64_t words,
                                    std::string choice) {
  using enum VoteTransportKind;
  switch (kind) {
    case int8_sum:
      return make_int8_sum(backend, group, words, std::move(choice));
    case packed_scatter:
      return make_packed_scatter(backend, group, words, std::move(choice));
    case hierarchical:
      return make_hierarchical(backend, group, groups, words, std::move(choice));
    default:
      return make_packed_gather(backend, group, words, std::move(choice));
  }
}

}  // namespace vote

VoteSize vote_size(const Communicator& group, int64_t words) {
  std::map<int, int> ranks;
  for (int r = 0; r < group.size(); ++r) ++ranks[group.node(r)];
  const auto unequal = [&](const auto& node) { return node.second != ranks.begin()->second; };
  return {group.size(), std::any_of(ranks.begin(), ranks.end(), unequal) ? 1 : static_cast<int64_t>(ranks.size()), words};
}

std::unique_ptr<VoteTransport> make_vote_transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words,
                                                   Communicator* all) {
  using enum VoteTransportKind;
  vote::check_equal_requests(group, kind, words);
  if (words < 0) throw ShapeError(text("a vote on ", words, " words; expected none or more"));
  const VoteSize size = vote_size(group, words);
  if (kind == hierarchical && size.nodes < 2) {
    int nodes = 1;
    for (int r = 0; r < group.size(); ++r) nodes = std::max(nodes, group.node(r) + 1);
    throw ConfigError(text("distribution.vote_transport: hierarchical needs the workers spread equally over at least two nodes; these ",
                           group.size(), " are on ", nodes, nodes > 1 ? " nodes, unequally" : " node", "; use auto or packed_scatter"));
  }
  if (group.size() == 1)
    return std::make_unique<vote::Alone>(backend, group, kind == automatic ? packed_gather : kind, words,
                                         "one worker: its votes are the result");
  vote::NodeGroups groups;
  if (kind == hierarchical || (kind == automatic && vote::has_levels(size))) groups = vote::split_by_nodes(group);
  VoteChoice choice{kind, vote::forced_text(kind, group.size())};
  if (kind == automatic) choice = vote::choose(backend, group, all != nullptr ? *all : group, groups, size);
  return vote::make(backend, group, choice.kind, groups, words, std::move(choice.reason));
}

}  // namespace dmuon
