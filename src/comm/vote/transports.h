// The transports of a vote, one file each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"

namespace dmuon::vote {

// The groups of a vote over several nodes: the workers of this node, and those with the same place in all nodes. Null where
// there are no levels.
struct NodeGroups {
  std::shared_ptr<Communicator> node, column;
};
// Collective. Ranks are spread equally over the group's nodes.
NodeGroups split_by_nodes(Communicator& group);
// Several nodes of several workers.
bool has_levels(const VoteSize& size);

// Collective, equal on all ranks of `group`.
VoteLinks measure_links(Backend& backend, Communicator& group, const NodeGroups& groups, Stream& stream);
// Collective in `all`, whose ranks choose alike, each for its group: the choice of `automatic`.
VoteChoice choose(Backend& backend, Communicator& group, Communicator& all, const NodeGroups& groups, const VoteSize& size);

// `kind` is not automatic. `groups`: for hierarchical.
std::unique_ptr<VoteTransport> make(Backend& backend, Communicator& group, VoteTransportKind kind, const NodeGroups& groups, int64_t words,
                                    std::string choice);

// Checks arguments and resolves the step to the worker that breaks ties.
class Transport : public VoteTransport {
 public:
  Transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words, std::string choice);

  VoteTransportKind kind() const final { return kind_; }
  const std::string& choice() const final { return choice_; }
  TrafficBytes traffic() const override { return group_.traffic(); }
  void set_deadline(double seconds) override { group_.set_deadline(seconds); }
  void vote(Stream& stream, const Tensor& words, int64_t any_words, int64_t step) final;

 protected:
  // `words` is flat. `tie_breaker`: a worker, or -1 where ties cannot happen.
  virtual void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) = 0;

  Tensor scratch(Communicator& group, int64_t elements, DType dtype, const char* name);

  Backend& backend_;
  Communicator& group_;

 private:
  VoteTransportKind kind_;
  int64_t most_words_;
  std::string choice_;
};

// Slices of `words` by owner: [i · words / owners, (i + 1) · words / owners).
std::vector<int64_t> slice_cuts(int64_t words, int owners);
// Equal segments of `length`, one of every rank.
std::vector<int64_t> equal_cuts(int64_t length, int ranks);
// How many of the leading `any_words` words of a buffer lie in its words [first, first + count).
int64_t any_words_of(int64_t any_words, int64_t first, int64_t count);

std::unique_ptr<VoteTransport> make_int8_sum(Backend& backend, Communicator& group, int64_t words, std::string choice);
std::unique_ptr<VoteTransport> make_packed_gather(Backend& backend, Communicator& group, int64_t words, std::string choice);
std::unique_ptr<VoteTransport> make_packed_scatter(Backend& backend, Communicator& group, int64_t words, std::string choice);
std::unique_ptr<VoteTransport> make_hierarchical(Backend& backend, Communicator& group, NodeGroups groups, int64_t words,
                                                 std::string choice);

}  // namespace dmuon::vote
