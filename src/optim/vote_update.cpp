#include "optim/vote_update.h"

#include <cmath>
#include <utility>

namespace dmuon {

std::string_view name_of(RateShape shape) {
  switch (shape) {
    case RateShape::none:
      return "none";
    case RateShape::unit_gain:
      return "unit_gain";
    case RateShape::mup:
      return "mup";
  }
  return "";
}

RateShape rate_shape_from_name(std::string_view name) {
  return enum_from_name("rate shape", name, {RateShape::none, RateShape::unit_gain, RateShape::mup});
}

double rate_factor(RateShape shape, int64_t fan_in) {
  switch (shape) {
    case RateShape::none:
      return 1.0;
    case RateShape::unit_gain:
      return 1.0 / std::sqrt(static_cast<double>(fan_in));
    case RateShape::mup:
      return 1.0 / static_cast<double>(fan_in);
  }
  return 1.0;
}

std::string_view name_of(DecayMode mode) { return mode == DecayMode::coupled ? "coupled" : "decoupled"; }

DecayMode decay_mode_from_name(std::string_view name) { return enum_from_name("decay", name, {DecayMode::decoupled, DecayMode::coupled}); }

VoteUpdate::VoteUpdate(std::string rule, const VoteOptions& options) : rule_(std::move(rule)), options_(options) {
  check_range(rule_.c_str(), "weight_decay", options.weight_decay, 0.0, 1e6);
}

void VoteUpdate::describe(Json& description) const {
  description.set("agreement", "vote");
  description.set("rate_shape", name_of(options_.rate_shape));
  description.set("weight_decay", options_.weight_decay);
  description.set("weight_decay_mode", options_.decay == DecayMode::coupled ? "coupled" : "decoupled_base_learning_rate");
}

void VoteUpdate::prepare(Backend& backend, Stream& stream, const StepValues& values) {
  gradient_scale_ = values.gradient_scale;
  apply_.prepare(backend, stream, values.learning_rate, decoupled_decay());
}

void VoteUpdate::begin_local(Backend& backend, Stream& stream, const UpdateItem& item) const {
  check_companion(rule_, item, "gradient", item.gradient);
  if (options_.decay != DecayMode::coupled || options_.weight_decay == 0.0) return;
  // The gradient is still to be multiplied by its scale; a scale of zero leaves nothing to turn.
  ScaledAdd fold;
  fold.x = item.parameter;
  fold.y = item.gradient;
  fold.alpha = gradient_scale_ != 0.0 ? options_.weight_decay / gradient_scale_ : 0.0;
  backend.activation().scaled_add(stream, fold);
}

void VoteUpdate::check_vote(const UpdateItem& item) const {
  const SignVote& vote = item.vote;
  const int64_t elements = item.parameter.elements();
  if (!vote.defined() || !vote.header.defined())
    throw ShapeError(text(rule_, ": ", item.name, " ", item.parameter.to_string(), " has no vote; a rule with a vote needs one"));
  if (vote.segments.count != elements || vote.words.elements() != sign_words(elements) ||
      vote.header.elements() != sign_header_words(vote.segments))
    throw ShapeError(text(rule_, ": ", item.name, " is ", item.parameter.to_string(), " but its vote is on ", vote.segments.count,
                          " elements, in ", vote.words.to_string(), " behind ", vote.header.to_string(), "; expected ",
                          sign_words(elements), " and ", sign_header_words(vote.segments), " words"));
  check_published(rule_, item);
}

void VoteUpdate::apply(Backend& backend, Stream& stream, const UpdateItem& item) {
  check_vote(item);
  ApplySigns apply;
  apply.parameter = item.parameter;
  apply.words = item.vote.words;
  apply.header = item.vote.header;
  apply.segments = item.vote.segments;
  apply.hyper = apply_.of(backend, stream, factor(item));
  apply.published = item.published;
  backend.signs().apply(stream, apply);
}

void VoteUpdate::unpack(Backend& backend, Stream& stream, const UpdateItem& item, const Tensor& out) const {
  check_vote(item);
  UnpackSigns unpack;
  unpack.words = item.vote.words;
  unpack.header = item.vote.header;
  unpack.segments = item.vote.segments;
  unpack.out = out;
  backend.signs().unpack(stream, unpack);
}

}  // namespace dmuon
