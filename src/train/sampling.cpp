#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/train/generator.h"

namespace dmuon {
namespace {

struct Candidate {
  double weight;  // exp((logit - largest) / temperature)
  int32_t id;
};

// The first candidate at which the running sum of weights exceeds `mark`; the last one where rounding leaves the mark beyond all.
int32_t draw_from(std::span<const Candidate> candidates, double mark) {
  for (const Candidate& candidate : candidates) {
    mark -= candidate.weight;
    if (mark < 0.0) return candidate.id;
  }
  return candidates.back().id;
}

// The most likely candidates in order: at most `count`, and no more than it takes to reach `share` of the weight of those `count`.
std::vector<Candidate> most_likely(std::vector<Candidate> heap, size_t count, double share) {
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight < b.weight || (a.weight == b.weight && a.id > b.id);
  };
  double whole = 0.0;
  if (count < heap.size()) {
    std::nth_element(heap.begin(), heap.begin() + static_cast<std::ptrdiff_t>(count), heap.end(),
                     [&](const Candidate& a, const Candidate& b) { return less_likely(b, a); });
    heap.resize(count);
  }
  for (const Candidate& candidate : heap) whole += candidate.weight;
  std::make_heap(heap.begin(), heap.end(), less_likely);
  std::vector<Candidate> chosen;
  for (double mass = 0.0; !heap.empty() && (chosen.empty() || share >= 1.0 || mass < share * whole);) {
    std::pop_heap(heap.begin(), heap.end(), less_likely);
    chosen.push_back(heap.back());
    mass += heap.back().weight;
    heap.pop_back();
  }
  return chosen;
}

}  // namespace

void apply_repetition_penalty(std::span<float> logits, std::span<const int32_t> context, double penalty) {
  if (penalty == 1.0) return;
  std::unordered_set<int32_t> seen;
  for (int32_t id : context) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size() || !seen.insert(id).second) continue;
    float& logit = logits[static_cast<size_t>(id)];
    logit = static_cast<float>(logit > 0.0f ? static_cast<double>(logit) / penalty : static_cast<double>(logit) * penalty);
  }
}

int32_t sample_token(std::span<const float> logits, const GenerationOptions& options, uint64_t draw) {
  for (float logit : logits)
    if (std::isnan(logit)) throw NumericalError("a logit is not a number: the model's weights have left the range of float32");
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (std::isinf(*largest)) throw NumericalError("the largest logit is infinite: the model's weights have left the range of float32");
  if (options.temperature <= 0.0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    candidates[i] = {std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) / options.temperature),
                     static_cast<int32_t>(i)};
  const bool top_k = options.top_k > 0 && static_cast<size_t>(options.top_k) < candidates.size();
  if (top_k || options.top_p < 1.0)
    candidates = most_likely(std::move(candidates), top_k ? static_cast<size_t>(options.top_k) : candidates.size(), options.top_p);
  double sum = 0.0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return draw_from(candidates, Random(options.seed, RandomStream::sampling, options.sequence).uniform(draw) * sum);
}

}  // namespace dmuon
