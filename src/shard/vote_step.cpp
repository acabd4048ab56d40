#include "shard/vote_step.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "dmuon/backend/sign_segments.h"
#include "dmuon/core/text.h"
#include "dmuon/core/trace.h"

namespace dmuon {
namespace {

constexpr int64_t no_parameter = std::numeric_limits<int64_t>::max();

SignSegments segments_of(const ShardJob& job, const UpdateTarget& target) {
  return sign_segments(job.parameter(target.tensor).shape, target.first, target.count, job.plan.cut_elements);
}

}  // namespace

VoteStep::VoteStep(ShardJob& job, UnitStore& store, std::vector<std::vector<UpdateCall>> windows)
    : job_(job), store_(store), observer_(job, store) {
  if (job.vote_plan.units.empty()) return;
  for (size_t rule = 0; rule < job.rules.rules.size() && rule_ < 0; ++rule)
    if (job.rules.rules[rule]->agreement() == Agreement::vote) rule_ = static_cast<int>(rule);
  any_ = rule_ >= 0;
  if (!any_) return;
  votes_.resize(store.targets().size());
  for (std::vector<UpdateCall>& window : windows) add_to_ballots(std::move(window));
  join_last_ballot();
  int64_t most = 1;
  for (size_t i = 0; i < ballots_.size(); ++i) {
    lay_out(ballots_[i], i);
    most = std::max(most, ballots_[i].words.elements());
  }
  if (job.votes.column) {  // all columns choose the same
    job.vote_transport = make_vote_transport(job.backend, *job.votes.column.group, job.options.vote_transport, most, &job.world);
    observer_.set_transport(name_of(job.vote_transport->kind()), job.vote_transport->choice());
  }
  first_bad_ = job.backend.allocate(Shape{1}, DType::int64, MemoryCategory::workspace, "first parameter that is not finite");
  std::vector<size_t> by_name(job.inventory().parameters().size());
  std::iota(by_name.begin(), by_name.end(), size_t{0});
  std::sort(by_name.begin(), by_name.end(),
            [&](size_t a, size_t b) { return job.inventory().parameters()[a].name < job.inventory().parameters()[b].name; });
  name_place_.resize(by_name.size());
  for (size_t place = 0; place < by_name.size(); ++place) name_place_[by_name[place]] = static_cast<int64_t>(place);
}

// Ballots hold whole windows, at least as many bytes as the options ask for; without overlap there is one.
bool VoteStep::large_enough(const Ballot& ballot) const {
  if (!job_.options.overlap) return false;
  int64_t words = 0;
  for (size_t index : ballot.targets) words += sign_header_words(votes_[index].segments) + sign_words(votes_[index].segments.count);
  return words * int64_t{sizeof(uint64_t)} >= job_.options.vote_ballot_bytes;
}

void VoteStep::add_to_ballots(std::vector<UpdateCall> window) {
  if (ballots_.empty() || large_enough(ballots_.back())) ballots_.emplace_back();
  Ballot& ballot = ballots_.back();
  for (UpdateCall& call : window) {
    if (job_.rules.rules[static_cast<size_t>(call.rule)]->agreement() != Agreement::vote) continue;
    for (size_t index : call.targets) votes_[index].segments = segments_of(job_, store_.targets()[index]);
    ballot.targets.insert(ballot.targets.end(), call.targets.begin(), call.targets.end());
    ballot.calls.push_back(std::move(call));
  }
}

// A small rest travels with the ballot before it.
void VoteStep::join_last_ballot() {
  if (ballots_.size() < 2 || large_enough(ballots_.back())) return;
  const Ballot rest = std::move(ballots_.back());
  ballots_.pop_back();
  Ballot& ballot = ballots_.back();
  ballot.calls.insert(ballot.calls.end(), rest.calls.begin(), rest.calls.end());
  ballot.targets.insert(ballot.targets.end(), rest.targets.begin(), rest.targets.end());
}

void VoteStep::lay_out(Ballot& ballot, size_t number) {
  int64_t words = 0;
  for (size_t index : ballot.targets) {
    ballot.header_words += sign_header_words(votes_[index].segments);
    words += sign_words(votes_[index].segments.count);
  }
  const Shape shape{ballot.header_words + words};
  const std::string name = text("votes ", number);
  ballot.words = job_.votes.column
                     ? job_.votes.column.group->allocate(job_.backend, shape, DType::int64, MemoryCategory::communication, name)
                     : job_.backend.allocate(shape, DType::int64, MemoryCategory::communication, name);
  int64_t header = 0, at = ballot.header_words;
  for (size_t index : ballot.targets) {
    SignVote& vote = votes_[index];
    const int64_t header_count = sign_header_words(vote.segments), count = sign_words(vote.segments.count);
    vote.header = ballot.words.flat(header, header_count);
    vote.words = ballot.words.flat(at, count);
    header += header_count;
    at += count;
  }
}

void VoteStep::pack(const Ballot& ballot, std::span<const StepValues> values) {
  Stream& stream = job_.backend.compute_stream();
  for (const UpdateCall& call : ballot.calls) {
    std::vector<UpdateItem> items = items_of(job_, store_, call);
    const auto rule = static_cast<size_t>(call.rule);
    job_.rules.rules[rule]->local(job_.backend, stream, items);
    for (size_t i = 0; i < items.size(); ++i) {
      const SignVote& vote = votes_[call.targets[i]];
      PackSigns pack;
      pack.in = items[i].gradient.reshape(Shape{vote.segments.count});
      pack.words = vote.words;
      pack.header = vote.header;
      pack.segments = vote.segments;
      pack.key = sign_key(job_.options.vote_seed, values[rule].step, items[i].name);
      job_.backend.signs().pack(stream, pack);
    }
  }
}

void VoteStep::run(std::span<const StepValues> values, bool observe) {
  const int64_t step = values[static_cast<size_t>(rule_)].step;
  if (observe) observer_.begin(step);
  for (Ballot& ballot : ballots_) {
    {
      const TraceSpan span(job_.options.trace, "compute", "update", "local halves");
      pack(ballot, values);
      if (observe) observer_.take(ballot.targets, votes_);
    }
    if (ballot.words.elements() == 0 || !job_.vote_transport) continue;
    ballot.counted =
        job_.start(job_.votes.column, job_.backend.compute_stream().record(), "vote", -1, ballot.words.bytes(),
                   [&](Communicator&, Stream& stream) { job_.vote_transport->vote(stream, ballot.words, ballot.header_words, step); });
  }
  for (Ballot& ballot : ballots_) {
    job_.wait(ballot.counted, "votes");
    ballot.counted = Event();
  }
  require_finite();
  if (observe) observer_.compare(votes_);
}

// Every worker of a shard has the same header after the vote; shards tell each other what they found.
void VoteStep::require_finite() {
  Stream& stream = job_.backend.compute_stream();
  int64_t first = no_parameter;
  std::vector<int64_t> words;
  for (const Ballot& ballot : ballots_) {
    words.assign(static_cast<size_t>(ballot.header_words), 0);
    if (words.empty()) continue;
    job_.backend.copy_to_host(stream, ballot.words.flat(0, ballot.header_words), words.data());
    size_t at = 0;
    for (size_t index : ballot.targets) {
      const int64_t count = sign_header_words(votes_[index].segments);
      if (count > 0 && (words[at] & 1) != 0) first = std::min(first, name_place_[static_cast<size_t>(store_.targets()[index].tensor)]);
      at += static_cast<size_t>(count);
    }
  }
  if (job_.votes.shard) {
    job_.backend.copy_from_host(stream, &first, first_bad_);
    job_.wait(job_.start(job_.votes.shard, stream.record(), "check of votes", -1, first_bad_.bytes(),
                         [&](Communicator& group, Stream& on) { group.all_reduce(on, first_bad_, ReduceOperation::minimum); }),
              "check of votes");
    job_.backend.copy_to_host(stream, first_bad_, &first);
  }
  if (first == no_parameter || job_.backend.shape_only()) return;
  const auto found = std::find(name_place_.begin(), name_place_.end(), first);
  const int parameter = static_cast<int>(found - name_place_.begin());
  throw NumericalError(text("the message that a worker would send of parameter ", job_.parameter(parameter).name,
                            " holds NaN or Inf although its gradient is finite: its momentum or its orthogonalisation has overflowed. No ",
                            "parameter was changed; resume from the last checkpoint with a lower learning rate, or with clipping"));
}

}  // namespace dmuon
