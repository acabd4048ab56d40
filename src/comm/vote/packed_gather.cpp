// Every worker receives the words of all and counts them: the fewest messages, bytes that grow with the workers.
#include "comm/vote/transports.h"

namespace dmuon::vote {
namespace {

class PackedGather final : public Transport {
 public:
  PackedGather(Backend& backend, Communicator& group, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::packed_gather, words, std::move(choice)),
        gathered_(scratch(group, words * group.size(), DType::int64, "votes of all workers")) {}

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const int64_t length = words.elements();
    const std::vector<int64_t> cuts = equal_cuts(length, group_.size());
    std::vector<Tensor> inputs;
    for (int w = 0; w < group_.size(); ++w) inputs.push_back(gathered_.flat(cuts[static_cast<size_t>(w)], length));
    backend_.copy(stream, words, inputs[static_cast<size_t>(group_.rank())]);
    group_.describe_next("votes");
    group_.all_gather_v(stream, gathered_.flat(0, cuts.back()), cuts);
    backend_.signs().vote(stream, {std::move(inputs), words, any_words, tie_breaker});
  }

  Tensor gathered_;  // [workers, words]
};

}  // namespace

std::unique_ptr<VoteTransport> make_packed_gather(Backend& backend, Communicator& group, int64_t words, std::string choice) {
  return std::make_unique<PackedGather>(backend, group, words, std::move(choice));
}

}  // namespace dmuon::vote
