// How often a vote is wrong, against the binomial formula: M workers that err independently with probability p, packed and voted
// on as in a run. Without ties the vote errs when more than half of the workers do; a tie is wrong half of the time.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "cpu/cpu_support.h"

using namespace dmuon;

namespace {

constexpr int most_workers = 31, calls = 32;
constexpr int64_t call_elements = 4001, draws = calls * call_elements;

double binomial(int n, int k) {
  double result = 1.0;
  for (int i = 1; i <= k; ++i) result = result * (n - k + i) / i;
  return result;
}
double probability(int workers, int wrong, double p) {
  return binomial(workers, wrong) * std::pow(p, wrong) * std::pow(1.0 - p, workers - wrong);
}
double tie_rate(int workers, double p) { return workers % 2 == 0 ? probability(workers, workers / 2, p) : 0.0; }
double error_rate(int workers, double p) {
  double sum = 0.5 * tie_rate(workers, p);
  for (int wrong = workers / 2 + 1; wrong <= workers; ++wrong) sum += probability(workers, wrong, p);
  return sum;
}
double five_deviations(double rate) { return 5.0 * std::sqrt(rate * (1.0 - rate) / static_cast<double>(draws)); }

// The true sign is +1; every worker's message has it with probability 1 - p.
class Election {
 public:
  explicit Election(double p) {
    for (int worker = 0; worker < most_workers; ++worker) {
      const Random random(static_cast<uint64_t>(worker), RandomStream::test);
      std::vector<double> message(static_cast<size_t>(draws));
      for (size_t i = 0; i < message.size(); ++i) message[i] = random.uniform(i) < p ? -1.0 : 1.0;
      const Tensor messages = cpu_test::tensor(*backend_, {draws}, message);
      for (int64_t call = 0; call < calls; ++call) {
        const SignSegments piece{0, call_elements, call_elements, 16384};
        const Tensor packed = words(sign_words(call_elements)), header = words(sign_header_words(piece));
        backend_->signs().pack(backend_->compute_stream(), {messages.flat(call * call_elements, call_elements), packed, header, piece, 1});
        ballots_[static_cast<size_t>(call)].push_back(packed);
      }
    }
  }

  // Of the first `workers`: the share of wrong votes, with another tie-breaker in every call.
  double error(int workers) {
    int64_t right = 0;
    for (int call = 0; call < calls; ++call)
      for (const uint64_t word : vote(call, workers, call % workers)) right += std::popcount(word);
    return 1.0 - static_cast<double>(right) / static_cast<double>(draws);
  }
  // The share of votes that depend on who breaks ties.
  double ties(int workers) {
    int64_t tied = 0;
    for (int call = 0; call < calls; ++call) {
      const std::vector<uint64_t> one = vote(call, workers, 0);
      std::vector<uint64_t> differ(one.size(), 0);
      for (int tie_breaker = 1; tie_breaker < workers; ++tie_breaker) {
        const std::vector<uint64_t> other = vote(call, workers, tie_breaker);
        for (size_t w = 0; w < one.size(); ++w) differ[w] |= one[w] ^ other[w];
      }
      for (const uint64_t word : differ) tied += std::popcount(word);
    }
    return static_cast<double>(tied) / static_cast<double>(draws);
  }

 private:
  Tensor words(int64_t count) { return backend_->allocate({count}, DType::int64, MemoryCategory::workspace, "words"); }
  std::vector<uint64_t> vote(int call, int workers, int tie_breaker) {
    const std::vector<Tensor>& all = ballots_[static_cast<size_t>(call)];
    const Tensor result = words(sign_words(call_elements));
    backend_->signs().vote(backend_->compute_stream(), {std::vector<Tensor>(all.begin(), all.begin() + workers), result, 0, tie_breaker});
    std::vector<uint64_t> values(static_cast<size_t>(result.elements()));
    backend_->copy_to_host(backend_->compute_stream(), result, values.data());
    return values;  // the unused bits of the last word are 0
  }

  std::unique_ptr<Backend> backend_ = cpu_test::make(1);
  std::array<std::vector<Tensor>, calls> ballots_;  // by call, then by worker
};

}  // namespace

TEST_CASE("votes err and tie as often as the binomial formula says") {
  for (const double p : {0.4, 0.478}) {
    Election election(p);
    for (int workers = 1; workers <= 16; ++workers) {
      INFO("p " << p << " workers " << workers);
      CHECK(election.error(workers) == Approx(error_rate(workers, p)).margin(five_deviations(error_rate(workers, p))));
      CHECK(election.ties(workers) == Approx(tie_rate(workers, p)).margin(five_deviations(tie_rate(workers, p))));
    }
    INFO("p " << p);
    CHECK(election.error(31) == Approx(error_rate(31, p)).margin(five_deviations(error_rate(31, p))));
  }
}

TEST_CASE("the formula: an even worker adds nothing, and weak signs gain about sqrt(2 M / pi)") {
  for (const double p : {0.1, 0.4, 0.478})
    for (int workers = 1; workers < 32; workers += 2) CHECK(error_rate(workers + 1, p) == Approx(error_rate(workers, p)).epsilon(1e-12));
  // Workers that are right hardly more often than wrong: (0.5 - error of M) / (0.5 - error of one).
  const double bias = 1e-5;
  const std::array<std::pair<int, double>, 5> gains = {{{3, 1.5}, {5, 1.875}, {7, 2.19}, {15, 3.14}, {31, 4.48}}};
  for (const auto& [workers, gain] : gains) {
    CHECK((0.5 - error_rate(workers, 0.5 - bias)) / bias == Approx(gain).margin(0.005));
    CHECK(workers * binomial(workers - 1, (workers - 1) / 2) / std::pow(2.0, workers - 1) == Approx(gain).margin(0.005));
    CHECK(std::sqrt(2.0 * workers / M_PI) == Approx(gain).epsilon(0.1));
  }
  const std::array<std::pair<int, double>, 4> ties = {{{2, 0.5}, {4, 0.375}, {8, 0.273}, {16, 0.196}}};
  for (const auto& [workers, rate] : ties) CHECK(tie_rate(workers, 0.5) == Approx(rate).margin(0.0005));
}
