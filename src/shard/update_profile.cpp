#include "shard/update_profile.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "dmuon/backend/measurement_key.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double seconds_now(bool thread_time) {
  timespec now{};
  clock_gettime(thread_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Normal values, repeated with a period that no matrix width shares, so that rows differ.
class RandomData {
 public:
  RandomData() {
    const Random random(1, RandomStream::test);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = 0.02f * static_cast<float>(random.normal(i));
  }
  void fill(Backend& backend, const Tensor& tensor) {
    const auto period = static_cast<int64_t>(values_.size());
    for (int64_t done = 0; done < tensor.elements(); done += period) {
      const int64_t count = std::min(period, tensor.elements() - done);
      backend.copy_from_host(backend.compute_stream(), values_.data(), tensor.flat(done, count));
    }
  }

 private:
  std::vector<float> values_ = std::vector<float>(1'000'003);
};

class BatchTimer {
 public:
  BatchTimer(Backend& backend, UpdateRule& rule, const UpdateProfileItem& item, int batch, DType published, RandomData& data)
      : backend_(backend), rule_(rule), data_(data) {
    const auto tensor = [&](DType dtype) {
      return backend.allocate(item.shape, dtype, MemoryCategory::workspace, "profile of owner updates");
    };
    for (int i = 0; i < batch; ++i) {
      UpdateItem entry;
      entry.name = text("profile.", i);
      entry.parameter = tensor(DType::float32);
      entry.gradient = tensor(DType::float32);
      for (size_t s = 0; s < rule.state().size(); ++s) entry.state.push_back(tensor(DType::float32));
      if (published != DType::float32) entry.published = tensor(published);
      data.fill(backend, entry.parameter);
      for (const Tensor& state : entry.state) data.fill(backend, state);
      items_.push_back(std::move(entry));
    }
  }

  double run() {
    Stream& stream = backend_.compute_stream();
    for (const UpdateItem& item : items_) data_.fill(backend_, item.gradient);  // an update may overwrite it
    rule_.prepare(backend_, stream, {++step_, 1e-3, 1.0});
    stream.synchronize();
    // One thread computes on the caller, whose CPU time other programs do not lengthen; more threads take wall time.
    const bool alone = backend_.information().threads == 1;
    const double start = seconds_now(alone);
    rule_.local(backend_, stream, items_);
    rule_.global(backend_, stream, items_);
    stream.synchronize();
    return std::max(seconds_now(alone) - start, 1e-9);
  }

 private:
  Backend& backend_;
  UpdateRule& rule_;
  RandomData& data_;
  std::vector<UpdateItem> items_;
  int64_t step_ = 0;
};

int64_t bytes_of(const UpdateRule& rule, const Shape& shape, int batch) {
  return batch * shape.elements() * 4 * static_cast<int64_t>(3 + rule.state().size());
}

// Powers of two, and the largest: between sizes the planner interpolates.
std::vector<int> sizes_of(const UpdateProfileItem& item, const UpdateRule& rule, const UpdateProfileOptions& options) {
  const int largest = std::min(item.largest_batch, options.largest_batch);
  std::vector<int> sizes;
  for (int b = 1; b < largest; b *= 2) sizes.push_back(b);
  sizes.push_back(std::max(largest, 1));
  std::erase_if(sizes, [&](int b) { return b > 1 && bytes_of(rule, item.shape, b) > options.memory_bytes; });
  return sizes;
}

}  // namespace

std::vector<UpdateProfileItem> update_profile_items(const std::vector<PlanTensor>& tensors, int window_units) {
  std::vector<UpdateProfileItem> items;
  std::vector<std::map<int, int>> in_window;  // per item
  for (const PlanTensor& tensor : tensors) {
    if (!tensor.whole || !in_plan(tensor)) continue;
    auto found =
        std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.rule == tensor.rule && item.shape == tensor.shape; });
    if (found == items.end()) {
      items.push_back({tensor.rule, tensor.shape, 1});
      in_window.emplace_back();
      found = items.end() - 1;
    }
    int& count = in_window[static_cast<size_t>(found - items.begin())][tensor.unit / std::max(window_units, 1)];
    found->largest_batch = std::max(found->largest_batch, ++count);
  }
  return items;
}

CostKey update_profile_key(const Backend& backend, std::span<const std::unique_ptr<UpdateRule>> rules, DType published_dtype,
                           std::string_view tuning) {
  std::string descriptions = text("published ", name_of(published_dtype), "\ntuned to ", tuning, "\n");
  for (const auto& rule : rules) descriptions += text(rule->name(), " ", rule->description().dump(), "\n");
  return {measurement_key(backend), "float32", hash_to_hex(hash_bytes(descriptions.data(), static_cast<int64_t>(descriptions.size())))};
}

CostModel measure_updates(Backend& backend, std::span<const std::unique_ptr<UpdateRule>> rules, std::span<const UpdateProfileItem> items,
                          const UpdateProfileOptions& options, CostModel known) {
  const Clock::time_point start = Clock::now();
  std::vector<std::vector<int>> sizes;
  std::vector<ShapeCost> costs;
  for (const UpdateProfileItem& item : items) {
    sizes.push_back(sizes_of(item, *rules[static_cast<size_t>(item.rule)], options));
    costs.push_back({item.rule, item.shape, {}});
    const ShapeCost* before = known.find(item.rule, item.shape);
    if (before != nullptr && before->batches.back().batch >= sizes.back().back()) sizes.back().clear();
  }
  size_t rounds = 0;
  for (const auto& of_item : sizes) rounds = std::max(rounds, of_item.size());
  RandomData data;
  for (size_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < items.size(); ++i) {
      if (round >= sizes[i].size() || costs[i].batches.size() < round) continue;  // also when a smaller size had no time
      const int batch = sizes[i][round];
      const double growth = round == 0 ? 0.0 : static_cast<double>(batch) / sizes[i][round - 1];
      const double expected = round == 0 ? 0.0 : growth * costs[i].batches.back().seconds * (options.warm_up + options.repeats);
      if (seconds_since(start) + expected > options.budget_seconds) continue;
      BatchTimer timer(backend, *rules[static_cast<size_t>(items[i].rule)], items[i], batch, options.published_dtype, data);
      for (int k = 0; k < options.warm_up; ++k) timer.run();
      std::vector<double> times;
      for (int k = 0; k < std::max(options.repeats, 1) && (k == 0 || seconds_since(start) < options.budget_seconds); ++k)
        times.push_back(timer.run());
      std::sort(times.begin(), times.end());
      costs[i].batches.push_back({batch, times[times.size() / 2]});
    }
  CostModel model(known.key());
  for (const ShapeCost& cost : known.shapes()) {
    const auto newer = std::find_if(costs.begin(), costs.end(), [&](const ShapeCost& c) {
      return c.rule == cost.rule && c.shape == cost.shape && c.batches.size() >= cost.batches.size();
    });
    if (newer == costs.end()) model.add(cost);
  }
  for (ShapeCost& cost : costs)
    if (!cost.batches.empty() && model.find(cost.rule, cost.shape) == nullptr) model.add(std::move(cost));
  return model;
}

}  // namespace dmuon
