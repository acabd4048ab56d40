// The votes as numbers, added by an all-reduce: ±1, of the worker that breaks ties ±2, so that a sum of ±1, even when it
// ties, gets that worker's sign. Header bits are 0 and 1: their OR is a sum above 0. The dtype of the sums excludes overflow.
#include "comm/vote/transports.h"

namespace dmuon::vote {
namespace {

class Int8Sum final : public Transport {
 public:
  Int8Sum(Backend& backend, Communicator& group, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::int8_sum, words, std::move(choice)),
        sums_(scratch(group, 64 * words, vote_sum_dtype(group.size()), "sums of votes")) {}

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const Tensor sums = sums_.flat(0, 64 * words.elements());
    backend_.signs().expand(stream, {words, sums, any_words, tie_breaker == group_.rank() ? 2 : 1});
    group_.describe_next("sums of votes");
    group_.all_reduce(stream, sums, ReduceOperation::sum);
    backend_.signs().threshold(stream, {sums, words});
  }

  Tensor sums_;
};

}  // namespace

std::unique_ptr<VoteTransport> make_int8_sum(Backend& backend, Communicator& group, int64_t words, std::string choice) {
  return std::make_unique<Int8Sum>(backend, group, words, std::move(choice));
}

}  // namespace dmuon::vote
