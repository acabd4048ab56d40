// Every worker receives one slice of the words of all, counts it, and the results are gathered: two bits an element,
// whatever the number of workers.
#include "comm/vote/transports.h"
#include "dmuon/core/checked.h"

namespace dmuon::vote {
namespace {

class PackedScatter final : public Transport {
 public:
  PackedScatter(Backend& backend, Communicator& group, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::packed_scatter, words, std::move(choice)),
        received_(scratch(group, round_up(words, group.size()), DType::int64, "slices of votes")) {}

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const std::vector<int64_t> cuts = slice_cuts(words.elements(), group_.size());
    const size_t rank = static_cast<size_t>(group_.rank());
    const int64_t first = cuts[rank];
    const int64_t length = cuts[rank + 1] - first;
    const std::vector<int64_t> places = equal_cuts(length, group_.size());
    group_.describe_next("votes");
    group_.all_to_all_v(stream, words, cuts, received_, places);
    if (length > 0) {
      std::vector<Tensor> inputs;
      for (int w = 0; w < group_.size(); ++w) inputs.push_back(received_.flat(w * length, length));
      backend_.signs().vote(stream, {std::move(inputs), words.flat(first, length), any_words_of(any_words, first, length), tie_breaker});
    }
    group_.describe_next("results of the vote");
    group_.all_gather_v(stream, words, cuts);
  }

  Tensor received_;  // [workers, longest slice]
};

}  // namespace

std::unique_ptr<VoteTransport> make_packed_scatter(Backend& backend, Communicator& group, int64_t words, std::string choice) {
  return std::make_unique<PackedScatter>(backend, group, words, std::move(choice));
}

}  // namespace dmuon::vote
