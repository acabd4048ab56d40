// Majority votes of one bit an element among the workers of a group (source: Sign-Muon, arXiv 2605.16311).
//
//   const auto transport = make_vote_transport(backend, group, VoteTransportKind::automatic, words);   // every rank, once
//   transport->vote(stream, buffer, header_words, step);                                               // every rank, each step
//
// The result of a bit is the majority of the workers' bits. An even number of workers can tie: then worker (step mod
// workers) decides, whoever that is. The leading words of a buffer can be headers, whose bits are combined by OR instead.
// All transports give equal bits on every rank. Bytes and costs: vote_cost.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dmuon/comm/communicator.h"
#include "dmuon/comm/vote_cost.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

class Backend;

class VoteTransport {
 public:
  virtual ~VoteTransport() = default;

  virtual VoteTransportKind kind() const = 0;  // never automatic
  // What was chosen and why, one line for people; equal on all ranks.
  virtual const std::string& choice() const = 0;
  // What this rank has sent through the group; of `hierarchical`, through the groups that the transport split off.
  virtual TrafficBytes traffic() const = 0;
  // Seconds that an operation of later votes may take, in the group and in groups that the transport split off.
  virtual void set_deadline(double seconds) = 0;
  // In place, on `stream` and in its order: its transfers and its kernels. `words`: int64, contiguous, at most as many as
  // the transport was made for and equally many on all ranks; ShapeError else. Where ranks disagree, the stream's waits
  // throw CommunicationError naming a rank and both sizes. The first `any_words` words are combined by OR. `step` >= 0.
  virtual void vote(Stream& stream, const Tensor& words, int64_t any_words, int64_t step) = 0;
};

// For votes on up to `words` words; holds the group and, once for all votes, its scratch memory. Collective and blocking. In
// a group of one nothing moves. CommunicationError naming ranks that ask for different transports or sizes; ConfigError
// naming distribution.vote_transport where `hierarchical` is asked for and the ranks are not spread equally over at least
// two nodes.
//
// `automatic` measures the group's links, predicts every transport, and, where that takes a moment only, times votes of those
// that are predicted to be similar: counting and copies are not predicted. Where several groups vote side by side, as the
// columns of a hybrid do, `all` is a group of all their ranks: they measure at the same time and choose the same transport.
std::unique_ptr<VoteTransport> make_vote_transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words,
                                                   Communicator* all = nullptr);

// The vote of a group's ranks on so many words; `nodes` is 1 unless they are spread equally over several.
VoteSize vote_size(const Communicator& group, int64_t words);

// Latency and bandwidth of the group as one rank sees them while all exchange at once: medians of small and large
// all-gathers. Equal on all ranks; collective and blocking. Zeros in a group of one.
LinkCost measure_link(Backend& backend, Communicator& group, Stream& stream);
// Of the whole group and, where nodes have several ranks, of its levels: the slowest node's and column's.
VoteLinks measure_vote_links(Backend& backend, Communicator& group, Stream& stream);

}  // namespace dmuon
