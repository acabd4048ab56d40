// The votes as numbers, added by an all-reduce: ±1, of the worker that breaks ties ±2, so that a sum of ±1, even when it
// ties, gets that worker's sign. Header bits are 0 and 1: their OR is a sum above 0. The dtype of the sums excludes overflow.
#include <algorithm>

#include "comm/vote/transports.h"

namespace dmuon::vote {
namespace {

// Keeps the tensors accessible while it lives.
struct Access {
  explicit Access(std::initializer_list<Tensor> list) : tensors(list) {
    for (const Tensor& tensor : tensors) tensor.storage()->open();
  }
  ~Access() {
    for (const Tensor& tensor : tensors) tensor.storage()->close();
  }
  std::vector<Tensor> tensors;
};

class Int8Sum final : public Transport {
 public:
  Int8Sum(Backend& backend, Communicator& group, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::int8_sum, words, std::move(choice)),
        sums_(scratch(group, 64 * words, vote_sum_dtype(group.size()), "sums of votes")),
        signs_(sums_) {
    if (sums_.dtype() != DType::int8) signs_ = backend.allocate({64 * words}, DType::int8, MemoryCategory::communication, "signs");
  }

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const int64_t elements = 64 * words.elements();
    const Tensor sums = sums_.flat(0, elements);
    const Tensor signs = signs_.flat(0, elements);
    backend_.signs().expand(stream, {words, signs, any_words, tie_breaker == group_.rank() ? 2 : 1});
    if (signs.dtype() != sums.dtype()) widen(stream, signs, sums);
    group_.describe_next("sums of votes");
    group_.all_reduce(stream, sums, ReduceOperation::sum);
    backend_.signs().threshold(stream, {sums, words});
  }

  // Communicators add in host memory, and so is this.
  void widen(Stream& stream, const Tensor& signs, const Tensor& sums) {
    if (backend_.shape_only() || signs.elements() == 0) return;
    stream.submit([signs, sums] {
      const Access access{signs, sums};
      const int8_t* from = signs.data<int8_t>();
      if (sums.dtype() == DType::int16)
        std::copy_n(from, signs.elements(), sums.data<int16_t>());
      else
        std::copy_n(from, signs.elements(), sums.data<int32_t>());
    });
  }

  Tensor sums_;
  Tensor signs_;  // the same memory, unless sums are wider
};

}  // namespace

std::unique_ptr<VoteTransport> make_int8_sum(Backend& backend, Communicator& group, int64_t words, std::string choice) {
  return std::make_unique<Int8Sum>(backend, group, words, std::move(choice));
}

}  // namespace dmuon::vote
