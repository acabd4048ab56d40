// Every worker receives the words of all and counts them.
#include "comm/vote/transports.h"

namespace dmuon::vote {
namespace {

class PackedGather final : public Transport {
 public:
  PackedGather(Backend& backend, Communicator& group, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::packed_gather, words, std::move(choice)),
        gathered_(group.allocate(backend, {words * group.size()}, DType::int64, MemoryCategory::communication, "votes of all workers")) {}

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const int64_t length = words.elements();
    const int workers = group_.size();
    std::vector<int64_t> cuts{0};
    std::vector<Tensor> inputs;
    for (int w = 0; w < workers; ++w) {
      inputs.push_back(gathered_.flat(w * length, length));
      cuts.push_back((w + 1) * length);
    }
    backend_.copy(stream, words, inputs[static_cast<size_t>(group_.rank())]);
    group_.all_gather_v(stream, gathered_.flat(0, workers * length), cuts);
    stream.submit([gathered = gathered_, words, inputs, length, workers, any_words, tie_breaker] {
      for (const Tensor& tensor : {gathered, words}) tensor.storage()->open();
      for (int64_t i = 0; i < length; ++i) {
        uint64_t result = 0;
        for (int bit = 0; bit < 64; ++bit) {
          int votes = 0;  // 2 a worker, 3 of the one that breaks ties
          for (int w = 0; w < workers; ++w)
            if ((inputs[static_cast<size_t>(w)].data<int64_t>()[i] >> bit & 1) != 0) votes += w == tie_breaker ? 3 : 2;
          if (i < any_words ? votes > 0 : votes > workers) result |= uint64_t{1} << bit;
        }
        words.data<int64_t>()[i] = static_cast<int64_t>(result);
      }
      for (const Tensor& tensor : {gathered, words}) tensor.storage()->close();
    });
  }

  Tensor gathered_;
};

}  // namespace

std::unique_ptr<VoteTransport> make_packed_gather(Backend& backend, Communicator& group, int64_t words, std::string choice) {
  return std::make_unique<PackedGather>(backend, group, words, std::move(choice));
}

}  // namespace dmuon::vote
