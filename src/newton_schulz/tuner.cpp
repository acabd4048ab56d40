#include "dmuon/newton_schulz/tuner.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int turns = 5;
constexpr double largest_flops = 2e9;  // of a queue: beyond, no fixed cost is left to be hidden
constexpr double least_gain = 0.03;    // a choice that differs from the fixed one has to be this much faster

std::vector<Tensor> random_matrices(Backend& backend, int64_t rows, int64_t columns, int64_t count) {
  std::vector<Tensor> matrices;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < count; ++i) {
    const Random random(static_cast<uint64_t>(i), RandomStream::test);
    for (size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(random.uniform(j) - 0.5);
    matrices.push_back(backend.allocate(Shape{rows, columns}, DType::float32, MemoryCategory::workspace, "tuning"));
    backend.copy_from_host(backend.compute_stream(), values.data(), matrices.back());
  }
  return matrices;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

bool is_placement(const Json* json, int64_t count) {
  if (!json || !json->is_object()) return false;
  const Json *batch = json->find("batch"), *queues = json->find("queues");
  return batch && queues && batch->is_integer() && queues->is_integer() && batch->as_integer() >= 1 && batch->as_integer() <= count &&
         queues->as_integer() >= 1 && queues->as_integer() <= batch->as_integer();
}

}  // namespace

double NewtonSchulzTuner::seconds(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns,
                                  const NewtonSchulzPlacement& placement) {
  const std::vector<Tensor> matrices = random_matrices(backend_, rows, columns, placement.batch);
  NewtonSchulzEngine engine(backend_, placement.queues);
  std::vector<double> times;
  for (int turn = 0; turn <= turns; ++turn) {  // the first warms up
    const auto start = std::chrono::steady_clock::now();
    engine.orthogonalize(backend_.compute_stream(), specification, matrices);
    backend_.compute_stream().synchronize();
    ++measurements_;
    if (turn > 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median(times) / static_cast<double>(placement.batch);
}

NewtonSchulzPlacement NewtonSchulzTuner::placement(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns,
                                                   int64_t count, const NewtonSchulzPlacement& fixed, int64_t most_bytes) {
  const double flops = newton_schulz_flops(specification, rows, columns);
  if (backend_.shape_only() || count < 2 || flops > patience_flops_) return fixed;
  const std::string name =
      text("placement ", rows, "x", columns, " float32 count ", count, " bytes ", most_bytes, " ", specification.description().dump());
  const auto fits = [&](const NewtonSchulzPlacement& p) {
    return newton_schulz_bytes(specification, rows, columns, DType::float32, p) <= most_bytes;
  };
  if (cache_)
    if (const Json* known = cache_->find(name); is_placement(known, count)) {
      const NewtonSchulzPlacement placement{known->at("batch").as_integer(), static_cast<int>(known->at("queues").as_integer())};
      if (fits(placement)) return placement;
    }
  const int threads = backend_.information().threads;
  NewtonSchulzPlacement best = fixed;
  double best_seconds = seconds(specification, rows, columns, fixed) * (1.0 - least_gain);
  for (int queues : {1, threads}) {
    for (int64_t batch = queues; batch <= count; batch = batch < count ? std::min(2 * batch, count) : count + 1) {
      const NewtonSchulzPlacement candidate{batch, queues};
      if (batch > queues && flops * static_cast<double>(batch) / queues > largest_flops) break;
      if (!fits(candidate) || (batch == fixed.batch && queues == fixed.queues)) continue;
      const double here = seconds(specification, rows, columns, candidate);
      if (here < best_seconds) best = candidate, best_seconds = here;
    }
    if (threads == 1) break;
  }
  if (cache_) {
    Json choice = Json::object();
    choice.set("batch", best.batch);
    choice.set("queues", best.queues);
    cache_->set(name, std::move(choice));
  }
  return best;
}

IterationForm NewtonSchulzTuner::form(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns) {
  NewtonSchulzSpecification automatic = specification, direct = specification, gram = specification;
  automatic.form = IterationForm::automatic, direct.form = IterationForm::direct, gram.form = IterationForm::gram;
  const IterationForm fixed = newton_schulz_form(automatic, rows, columns);
  if (backend_.shape_only() || newton_schulz_flops(automatic, rows, columns) > patience_flops_) return fixed;
  const std::string name = text("form ", rows, "x", columns, " float32 ", specification.description().dump());
  if (cache_)
    if (const Json* known = cache_->find(name); known && known->is_string() && (*known == Json("direct") || *known == Json("gram")))
      return iteration_form_from_name(known->as_string());
  const double direct_seconds = seconds(direct, rows, columns, {}), gram_seconds = seconds(gram, rows, columns, {});
  IterationForm best = fixed;
  if (direct_seconds < gram_seconds * (1.0 - least_gain)) best = IterationForm::direct;
  if (gram_seconds < direct_seconds * (1.0 - least_gain)) best = IterationForm::gram;
  if (cache_) cache_->set(name, name_of(best));
  return best;
}

}  // namespace dmuon
