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

int nodes_of(const Communicator& group) {
  int nodes = 1;
  for (int r = 0; r < group.size(); ++r) nodes = std::max(nodes, group.node(r) + 1);
  return nodes;
}

// Nodes, if each has equally many ranks; else 1.
int equal_nodes_of(const Communicator& group) {
  std::map<int, int> ranks;
  for (int r = 0; r < group.size(); ++r) ++ranks[group.node(r)];
  for (const auto& [node, count] : ranks)
    if (count != ranks.begin()->second) return 1;
  return static_cast<int>(ranks.size());
}

void check_equal_requests(Communicator& group, VoteTransportKind kind, int64_t words) {
  const std::vector<std::string> requests = group.all_gather_text(text(name_of(kind), " on ", words, " words"));
  for (size_t r = 1; r < requests.size(); ++r)
    if (requests[r] != requests[0])
      throw CommunicationError(text("ranks of a vote disagree: rank 0 (", group.host(0), ") asks for ", requests[0], ", rank ", r, " (",
                                    group.host(static_cast<int>(r)), ") for ", requests[r],
                                    "; start every rank with the same configuration"));
}

// The slowest rank's view, for all.
LinkCost agreed(Communicator& group, const LinkCost& link) {
  const double mine[] = {link.latency_seconds, link.seconds_per_byte};
  const std::vector<double> most = group.all_reduce(mine, ReduceOperation::maximum);
  return {most[0], most[1]};
}

VoteLinks measure_links(Backend& backend, Communicator& group, const NodeGroups& groups) {
  const auto stream = make_inline_stream();
  VoteLinks links;
  links.all = links.inside = links.between = measure_link(backend, group, *stream);
  if (groups.node == nullptr) return links;
  links.inside = agreed(group, measure_link(backend, *groups.node, *stream));
  links.between = agreed(group, measure_link(backend, *groups.column, *stream));
  return links;
}

// What is to be known of a transport that was asked for.
std::string forced_text(VoteTransportKind kind, int workers) {
  const DType sum = vote_sum_dtype(workers);
  if (kind != VoteTransportKind::int8_sum || sum == DType::int8) return text(name_of(kind), ": as configured");
  return text("int8_sum: as configured, summed in ", name_of(sum), " because the sum of ", workers,
              " workers does not fit into int8 (127 at most), with ", size_of(sum),
              " times the bytes; distribution.vote_transport = packed_scatter sends ", 32 * size_of(sum) / 4, " times less");
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

}  // namespace vote

std::unique_ptr<VoteTransport> make_vote_transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words) {
  using enum VoteTransportKind;
  if (words < 0) throw ShapeError(text("a vote on ", words, " words; expected none or more"));
  const int nodes = vote::equal_nodes_of(group);
  if (kind == hierarchical && nodes < 2)
    throw ConfigError(text("distribution.vote_transport: hierarchical needs the workers spread equally over at least two nodes; these ",
                           group.size(), " are on ", vote::nodes_of(group), vote::nodes_of(group) > 1 ? " nodes, unequally" : " node",
                           "; use auto or packed_scatter"));
  if (group.size() == 1)
    return std::make_unique<vote::Alone>(backend, group, kind == automatic ? packed_gather : kind, words,
                                         "one worker: its votes are the result");
  vote::check_equal_requests(group, kind, words);
  const VoteSize size{group.size(), nodes, words};
  vote::NodeGroups groups;
  if (kind == hierarchical || (kind == automatic && nodes > 1 && nodes < group.size())) groups = vote::split_by_nodes(group);
  VoteChoice choice{kind, vote::forced_text(kind, group.size())};
  if (kind == automatic) choice = choose_vote_transport(size, vote::measure_links(backend, group, groups));
  switch (choice.kind) {
    case int8_sum:
      return vote::make_int8_sum(backend, group, words, choice.reason);
    case packed_scatter:
      return vote::make_packed_scatter(backend, group, words, choice.reason);
    case hierarchical:
      return vote::make_hierarchical(backend, group, std::move(groups), words, choice.reason);
    default:
      return vote::make_packed_gather(backend, group, words, choice.reason);
  }
}

}  // namespace dmuon
