#include "shard/vote_observer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "dmuon/core/random.h"
#include "shard/operator_norm.h"

namespace dmuon {
namespace {

constexpr int64_t sample_words = 1024;                // 8 KiB a worker
constexpr int64_t largest_matrix = int64_t{1} << 20;  // whose norm is worth its time, some ten milliseconds
constexpr int64_t compared_at_once = int64_t{1} << 16;

// Adds the time of its scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The elements of a word of signs whose segment is active on any worker; `header` after the vote.
uint64_t active_bits(const SignSegments& segments, const std::vector<uint64_t>& header, int64_t word) {
  uint64_t bits = 0;
  const int64_t begin = word * 64, end = std::min(begin + 64, segments.count);
  for (int64_t element = begin; element < end;) {
    const int64_t stop = std::min(segment_end(segments, element), end), flag = 1 + segment_of(segments, element);
    if ((header[static_cast<size_t>(flag / 64)] >> (flag % 64) & 1) != 0)
      bits |= (~uint64_t{0} >> (64 - (stop - element))) << (element - begin);
    element = stop;
  }
  return bits;
}

}  // namespace

VoteObserver::VoteObserver(ShardJob& job, UnitStore& store) : job_(job), store_(store) {
  report_.workers = job.workers();
  for (const UnitLayout& unit : job.vote_plan.units)
    for (const UnitLayout::Entry& entry : unit.entries) {
      report_.elements += entry.elements;
      const Shape& shape = job.parameter(entry.tensor).shape;
      const int64_t end = entry.offset + entry.elements;
      const bool in_one_piece =
          std::none_of(unit.cuts.begin(), unit.cuts.end(), [&](int64_t cut) { return entry.offset < cut && cut < end; });
      if (shape.rank() >= 2 && shape[0] > 1 && entry.elements > shape[0] && entry.elements <= largest_matrix && in_one_piece)
        matrices_.push_back(entry.tensor);
    }
  const auto pieces = std::count_if(store.targets().begin(), store.targets().end(), [](const UpdateTarget& target) { return target.vote; });
  quota_ = std::max<int64_t>(1, sample_words / std::max<int64_t>(pieces, 1));
}

void VoteObserver::begin(int64_t step) {
  draw_ = mix64(static_cast<uint64_t>(step)) >> 1;
  seconds_ = 0.0;
  const Stopwatch stopwatch(seconds_);
  parts_.clear();
  sampled_words_ = 0;
  tied_ = agreeing_ = sampled_ = ratio_ = 0.0;
  matrix_ = nullptr;
  if (sample_.defined()) return;
  const auto allocate = [&](int64_t words) {
    return job_.votes.column ? job_.votes.column.group->allocate(job_.backend, Shape{words}, DType::int64, MemoryCategory::communication,
                                                                 "sample of votes")
                             : job_.backend.allocate(Shape{words}, DType::int64, MemoryCategory::communication, "sample of votes");
  };
  sample_ = allocate(sample_words);
  gathered_ = allocate(sample_words * job_.workers());
}

void VoteObserver::take(const std::vector<size_t>& targets, const std::vector<SignVote>& votes) {
  const Stopwatch stopwatch(seconds_);
  for (size_t target : targets) {
    const int64_t there = votes[target].words.elements(), words = std::min({quota_, there, sample_words - sampled_words_});
    if (words <= 0) continue;
    const auto first = static_cast<int64_t>(draw_ % static_cast<uint64_t>(there - words + 1));
    parts_.push_back({target, first, words, sampled_words_});
    job_.backend.copy(job_.backend.compute_stream(), votes[target].words.flat(first, words), sample_.flat(sampled_words_, words));
    sampled_words_ += words;
  }
}

void VoteObserver::compare(const std::vector<SignVote>& votes) {
  const Stopwatch stopwatch(seconds_);
  if (sampled_words_ > 0) count(votes);
  if (matrices_.empty()) return;
  report_.matrix = job_.parameter(matrices_[draw_ % matrices_.size()]).name;
  matrix_ = pick_matrix();
  if (matrix_ != nullptr) measure_matrix(votes);
}

void VoteObserver::exchange(Level& level, const char* what, int64_t bytes, const std::function<void(Communicator&, Stream&)>& submit) {
  const TrafficBytes before = level.group->traffic();
  job_.wait(job_.start(level, job_.backend.compute_stream().record(), what, -1, bytes, submit), what);
  const TrafficBytes after = level.group->traffic();
  sent_.inside += after.inside - before.inside;
  sent_.between += after.between - before.between;
}

// Null on shards that do not hold it. Where only sizes are counted, the largest of this rank: no step takes more memory.
const UpdateTarget* VoteObserver::pick_matrix() const {
  const UpdateTarget* largest = nullptr;
  for (const UpdateTarget& target : store_.targets()) {
    if (!target.vote) continue;
    if (!job_.backend.shape_only() && target.tensor == matrices_[draw_ % matrices_.size()]) return &target;
    if (std::find(matrices_.begin(), matrices_.end(), target.tensor) != matrices_.end() && (!largest || target.count > largest->count))
      largest = &target;
  }
  return job_.backend.shape_only() ? largest : nullptr;
}

void VoteObserver::count(const std::vector<SignVote>& votes) {
  Stream& stream = job_.backend.compute_stream();
  const auto workers = static_cast<size_t>(job_.workers());
  const Tensor all = gathered_.flat(0, sampled_words_ * job_.workers());
  job_.backend.copy(stream, sample_.flat(0, sampled_words_), all.flat(job_.replica * sampled_words_, sampled_words_));
  if (job_.votes.column) {
    std::vector<int64_t> cuts;
    for (int64_t worker = 0; worker <= job_.workers(); ++worker) cuts.push_back(worker * sampled_words_);
    exchange(job_.votes.column, "sample of votes", sample_.bytes(),
             [&](Communicator& group, Stream& on) { group.all_gather_v(on, all, cuts); });
  }
  std::vector<uint64_t> signs(static_cast<size_t>(all.elements())), agreed(static_cast<size_t>(quota_)), header;
  job_.backend.copy_to_host(stream, all, signs.data());
  for (const Part& part : parts_) {
    const SignVote& vote = votes[part.target];
    job_.backend.copy_to_host(stream, vote.words.flat(part.first, part.words), agreed.data());
    header.resize(static_cast<size_t>(vote.header.elements()));
    job_.backend.copy_to_host(stream, vote.header, header.data());
    for (int64_t word = 0; word < part.words; ++word) {
      const uint64_t used = active_bits(vote.segments, header, part.first + word);
      std::array<size_t, 64> plus{};
      for (size_t worker = 0; worker < workers; ++worker) {
        const uint64_t mine = signs[worker * static_cast<size_t>(sampled_words_) + static_cast<size_t>(part.at + word)];
        agreeing_ += std::popcount(~(mine ^ agreed[static_cast<size_t>(word)]) & used);
        for (size_t bit = 0; bit < 64; ++bit) plus[bit] += mine >> bit & 1;
      }
      for (size_t bit = 0; bit < 64; ++bit) tied_ += (used >> bit & 1) != 0 && 2 * plus[bit] == workers;
      sampled_ += std::popcount(used);
    }
  }
}

void VoteObserver::measure_matrix(const std::vector<SignVote>& votes) {
  Stream& stream = job_.backend.compute_stream();
  const SignVote& vote = votes[static_cast<size_t>(matrix_ - store_.targets().data())];
  const Tensor signs = job_.allocate(matrix_->count, DType::float32, MemoryCategory::workspace, "votes on a matrix");
  job_.backend.signs().unpack(stream, {vote.words, vote.header, signs, vote.segments});
  const int64_t rows = job_.parameter(matrix_->tensor).shape[0], columns = matrix_->count / rows;
  ratio_ = operator_norm(job_.backend, stream, signs.reshape(Shape{rows, columns})) /
           (std::sqrt(static_cast<double>(rows)) + std::sqrt(static_cast<double>(columns)));
  before_ = job_.allocate(matrix_->count, DType::float32, MemoryCategory::workspace, "a matrix before its update");
  job_.backend.copy(stream, matrix_->parameter, before_);
}

double VoteObserver::largest_change() const {
  Stream& stream = job_.backend.compute_stream();
  std::vector<float> before(static_cast<size_t>(std::min(matrix_->count, compared_at_once))), after(before.size());
  double change = 0.0;
  for (int64_t first = 0; first < matrix_->count; first += compared_at_once) {
    const int64_t count = std::min(compared_at_once, matrix_->count - first);
    job_.backend.copy_to_host(stream, before_.flat(first, count), before.data());
    job_.backend.copy_to_host(stream, matrix_->parameter.flat(first, count), after.data());
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) change = std::max(change, std::abs(static_cast<double>(after[i]) - before[i]));
  }
  return change;
}

void VoteObserver::finish() {
  Stream& stream = job_.backend.compute_stream();
  stream.synchronize();  // the update itself is not part of the observation
  std::array<double, 5> sums{};
  {
    const Stopwatch stopwatch(seconds_);
    sums = {tied_, agreeing_, sampled_, ratio_, matrix_ != nullptr ? largest_change() : 0.0};
    before_ = Tensor();
    add_over_shards(sums);
  }
  report_.tied = static_cast<int64_t>(sums[0]);
  report_.agreeing = static_cast<int64_t>(sums[1]);
  report_.sampled = static_cast<int64_t>(sums[2]);
  report_.operator_norm_ratio = sums[3];
  report_.largest_change = sums[4];
  const int64_t sent = sent_.inside + sent_.between;
  report_.bytes = sent - sent_before_;
  sent_before_ = sent;
  report_.observe_seconds = seconds_;
}

// Every shard saw its own pieces, and one of them the matrix.
void VoteObserver::add_over_shards(std::array<double, 5>& sums) {
  if (!job_.votes.shard) return;
  Stream& stream = job_.backend.compute_stream();
  const Tensor data = job_.allocate(static_cast<int64_t>(sums.size()), DType::float64, MemoryCategory::workspace, "report of votes");
  job_.backend.copy_from_host(stream, sums.data(), data);
  exchange(job_.votes.shard, "report of votes", data.bytes(),
           [&](Communicator& group, Stream& on) { group.all_reduce(on, data, ReduceOperation::sum); });
  job_.backend.copy_to_host(stream, data, sums.data());
}

}  // namespace dmuon
