// The transports of a vote, one file each.
#pragma once

#include <memory>
#include <string>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"

namespace dmuon::vote {

// Checks arguments and resolves the step to the worker that breaks ties.
class Transport : public VoteTransport {
 public:
  Transport(Backend& backend, Communicator& group, VoteTransportKind kind, int64_t words, std::string choice);

  VoteTransportKind kind() const final { return kind_; }
  const std::string& choice() const final { return choice_; }
  void vote(Stream& stream, const Tensor& words, int64_t any_words, int64_t step) final;

 protected:
  // `words` is flat. `tie_breaker`: a worker, or -1 where ties cannot happen.
  virtual void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) = 0;

  Backend& backend_;
  Communicator& group_;

 private:
  VoteTransportKind kind_;
  int64_t most_words_;
  std::string choice_;
};

std::unique_ptr<VoteTransport> make_packed_gather(Backend& backend, Communicator& group, int64_t words, std::string choice);

}  // namespace dmuon::vote
