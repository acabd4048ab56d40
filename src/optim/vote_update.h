// The parts that all rules with a vote share: coupled decay before it, the step along the agreed signs after it.
#pragma once

#include <string>

#include "dmuon/optim/vote_options.h"
#include "optim/rule_support.h"
#include "optim/scaled_hyper.h"

namespace dmuon {

class VoteUpdate {
 public:
  // ConfigError "<rule>: <field> ..." for options out of range.
  VoteUpdate(std::string rule, const VoteOptions& options);

  void describe(Json& description) const;
  void prepare(Backend& backend, Stream& stream, const StepValues& values);

  // Local half: checks the item (ShapeError naming the parameter) and folds coupled decay into its gradient.
  void begin_local(Backend& backend, Stream& stream, const UpdateItem& item) const;
  // Global half: ShapeError naming the parameter unless the item brings a vote on its elements.
  void check_vote(const UpdateItem& item) const;
  // The decoupled decay and the step along the vote, with the factor of the tensor's shape.
  void apply(Backend& backend, Stream& stream, const UpdateItem& item);
  // The vote as numbers +1, -1 and 0, in `out` of the item's size.
  void unpack(Backend& backend, Stream& stream, const UpdateItem& item, const Tensor& out) const;

  double factor(const UpdateItem& item) const { return rate_factor(options_.rate_shape, item.vote.segments.row_length); }
  double decoupled_decay() const { return options_.decay == DecayMode::decoupled ? options_.weight_decay : 0.0; }

 private:
  std::string rule_;
  VoteOptions options_;
  double gradient_scale_ = 1.0;
  ScaledHyper apply_;
};

}  // namespace dmuon
