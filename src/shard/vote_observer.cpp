#include "shard/vote_observer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "dmuon/core/random.h"

namespace dmuon {
namespace {

constexpr int64_t sample_words = 1024;                // 8 KiB a worker
constexpr int64_t largest_matrix = int64_t{1} << 23;  // whose norm is worth its time
constexpr int power_iterations = 20;                  // to a few per cent: spectra of signs are dense at the top

// Largest singular value of a rows x columns matrix.
double operator_norm(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> right(static_cast<size_t>(columns)), product(static_cast<size_t>(columns));
  const Random random(1, RandomStream::sampling);
  for (size_t c = 0; c < right.size(); ++c) right[c] = static_cast<float>(random.normal(c));
  double norm = 0.0;
  for (int i = 0; i < power_iterations; ++i) {
    double square = 0.0;
    for (float value : right) square += static_cast<double>(value) * value;
    const auto scale = static_cast<float>(square > 0.0 ? 1.0 / std::sqrt(square) : 0.0);
    for (float& value : right) value *= scale;
    std::fill(product.begin(), product.end(), 0.0f);
    double left_square = 0.0;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = matrix.data() + r * columns;
      std::array<float, 16> parts{};  // independent sums, for vector instructions
      int64_t done = 0;
      for (; done + 16 <= columns; done += 16)
        for (size_t k = 0; k < 16; ++k) parts[k] += row[done + static_cast<int64_t>(k)] * right[static_cast<size_t>(done) + k];
      float left = 0.0f;
      for (; done < columns; ++done) left += row[done] * right[static_cast<size_t>(done)];
      for (float part : parts) left += part;
      for (int64_t c = 0; c < columns; ++c) product[static_cast<size_t>(c)] += row[c] * left;
      left_square += static_cast<double>(left) * left;
    }
    norm = std::sqrt(left_square);
    right.swap(product);
  }
  return norm;
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

void VoteObserver::begin() {
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
  for (size_t target : targets) {
    const int64_t there = votes[target].words.elements(), words = std::min({quota_, there, sample_words - sampled_words_});
    if (words <= 0) continue;
    const int64_t first = observed_ * quota_ % (there - words + 1);
    parts_.push_back({target, first, words, sampled_words_});
    job_.backend.copy(job_.backend.compute_stream(), votes[target].words.flat(first, words), sample_.flat(sampled_words_, words));
    sampled_words_ += words;
  }
}

void VoteObserver::compare(const std::vector<SignVote>& votes) {
  if (sampled_words_ > 0) count(votes);
  if (matrices_.empty()) return;
  const int parameter = matrices_[static_cast<size_t>(observed_ % static_cast<int64_t>(matrices_.size()))];
  report_.matrix = job_.parameter(parameter).name;
  for (const UpdateTarget& target : store_.targets())
    if (target.vote && target.tensor == parameter) matrix_ = &target;
  if (matrix_ != nullptr) measure_matrix(votes);
}

void VoteObserver::exchange(Level& level, const char* what, int64_t bytes, const std::function<void(Communicator&, Stream&)>& submit) {
  const TrafficBytes before = level.group->traffic();
  job_.wait(job_.start(level, job_.backend.compute_stream().record(), what, -1, bytes, submit), what);
  const TrafficBytes after = level.group->traffic();
  sent_.inside += after.inside - before.inside;
  sent_.between += after.between - before.between;
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
  std::vector<uint64_t> signs(static_cast<size_t>(all.elements())), agreed(static_cast<size_t>(quota_));
  job_.backend.copy_to_host(stream, all, signs.data());
  for (const Part& part : parts_) {
    const SignVote& vote = votes[part.target];
    job_.backend.copy_to_host(stream, vote.words.flat(part.first, part.words), agreed.data());
    for (int64_t word = 0; word < part.words; ++word) {
      const int64_t bits = std::min<int64_t>(64, vote.segments.count - (part.first + word) * 64);
      const uint64_t used = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
      std::array<size_t, 64> plus{};
      for (size_t worker = 0; worker < workers; ++worker) {
        const uint64_t mine = signs[worker * static_cast<size_t>(sampled_words_) + static_cast<size_t>(part.at + word)];
        agreeing_ += std::popcount(~(mine ^ agreed[static_cast<size_t>(word)]) & used);
        for (size_t bit = 0; bit < 64; ++bit) plus[bit] += mine >> bit & 1;
      }
      for (size_t bit = 0; bit < static_cast<size_t>(bits); ++bit) tied_ += 2 * plus[bit] == workers;
      sampled_ += static_cast<double>(bits);
    }
  }
}

void VoteObserver::measure_matrix(const std::vector<SignVote>& votes) {
  Stream& stream = job_.backend.compute_stream();
  const SignVote& vote = votes[static_cast<size_t>(matrix_ - store_.targets().data())];
  const Tensor signs = job_.allocate(matrix_->count, DType::float32, MemoryCategory::workspace, "votes on a matrix");
  job_.backend.signs().unpack(stream, {vote.words, vote.header, signs, vote.segments});
  std::vector<float> host(static_cast<size_t>(matrix_->count));
  job_.backend.copy_to_host(stream, signs, host.data());
  const int64_t rows = job_.parameter(matrix_->tensor).shape[0], columns = matrix_->count / rows;
  ratio_ = operator_norm(host, rows, columns) / (std::sqrt(static_cast<double>(rows)) + std::sqrt(static_cast<double>(columns)));
  before_ = job_.allocate(matrix_->count, DType::float32, MemoryCategory::workspace, "a matrix before its update");
  job_.backend.copy(stream, matrix_->parameter, before_);
}

void VoteObserver::finish() {
  Stream& stream = job_.backend.compute_stream();
  double change = 0.0;
  if (matrix_ != nullptr) {
    std::vector<float> before(static_cast<size_t>(matrix_->count)), after(before.size());
    job_.backend.copy_to_host(stream, before_, before.data());
    job_.backend.copy_to_host(stream, matrix_->parameter, after.data());
    for (size_t i = 0; i < before.size(); ++i) change = std::max(change, std::abs(static_cast<double>(after[i]) - before[i]));
    before_ = Tensor();
  }
  // Every shard saw its own pieces, and one of them the matrix.
  std::array<double, 5> sums{tied_, agreeing_, sampled_, ratio_, change};
  if (job_.votes.shard) {
    const Tensor data = job_.allocate(static_cast<int64_t>(sums.size()), DType::float64, MemoryCategory::workspace, "report of votes");
    job_.backend.copy_from_host(stream, sums.data(), data);
    exchange(job_.votes.shard, "report of votes", data.bytes(),
             [&](Communicator& group, Stream& on) { group.all_reduce(on, data, ReduceOperation::sum); });
    job_.backend.copy_to_host(stream, data, sums.data());
  }
  report_.tied = static_cast<int64_t>(sums[0]);
  report_.agreeing = static_cast<int64_t>(sums[1]);
  report_.sampled = static_cast<int64_t>(sums[2]);
  report_.operator_norm_ratio = sums[3];
  report_.largest_change = sums[4];
  const int64_t sent = sent_.inside + sent_.between;
  report_.bytes = sent - sent_before_;
  sent_before_ = sent;
  ++observed_;
}

}  // namespace dmuon
