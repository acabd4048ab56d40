// Making a transport: agreement of the ranks, the choice, and the group of one.
#include <vector>

#include "comm/vote/transports.h"
#include "dmuon/comm/vote.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Nothing to count: the only worker's votes are the result.
class AloneTransport final : public vote::Transport {
 public:
  using Transport::Transport;
  void count(Stream&, const Tensor&, int64_t, int) override {}
};

}  // namespace

namespace vote {

Transport::Transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words, std::string choice)
    : backend_(backend), group_(group), kind_(kind), most_words_(words), choice_(std::move(choice)) {}

void Transport::vote(Stream& stream, const Tensor& words, int64_t any_words, int64_t step) {
  if (words.dtype() != DType::int64 || words.elements() > most_words_ || any_words < 0 || any_words > words.elements() || step < 0)
    throw ShapeError(text("vote of rank ", group_.rank(), " at step ", step, " on ", words.to_string(), " with ", any_words,
                          " header words; the transport was made for int64[", most_words_, "] at most"));
  count(stream, words.flat(), any_words, group_.size() % 2 == 0 ? static_cast<int>(step % group_.size()) : -1);
}

}  // namespace vote

std::unique_ptr<VoteTransport> make_vote_transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words) {
  if (words < 0) throw ShapeError(text("a vote on ", words, " words; expected none or more"));
  if (group.size() == 1) {
    if (kind == VoteTransportKind::automatic) kind = VoteTransportKind::packed_gather;
    return std::make_unique<AloneTransport>(backend, group, kind, words, "one worker: its votes are the result");
  }
  return vote::make_packed_gather(backend, group, words, "packed_gather");
}

LinkCost measure_link(Backend&, Communicator&, Stream&) { return {}; }

}  // namespace dmuon
