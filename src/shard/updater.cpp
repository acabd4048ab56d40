#include "shard/updater.h"

#include <algorithm>
#include <map>

#include "dmuon/core/text.h"
#include "dmuon/core/trace.h"

namespace dmuon {

Updater::Updater(ShardJob& job, UnitStore& store, Reducer& reducer, Publisher& publisher, const UseOrder& order)
    : job_(job), store_(store), reducer_(reducer), publisher_(publisher) {
  plan_calls(order);
  std::vector<std::vector<UpdateCall>> calls;
  for (const Window& window : windows_) calls.push_back(window.calls);
  votes_ = std::make_unique<VoteStep>(job, store, std::move(calls));
  if (job.options.distribution != Distribution::gather || job.alone()) return;
  std::vector<int64_t> largest;  // by place in a window
  for (const Window& window : windows_)
    for (size_t i = 0; i < window.units.size(); ++i) {
      if (i == largest.size()) largest.push_back(0);
      largest[i] = std::max(largest[i], job.layout(window.units[i]).elements);
    }
  for (int64_t elements : largest)
    gather_pool_.push_back(
        job.allocate_shared(job.gradients, elements, DType::float32, MemoryCategory::gradients, "gathered gradients of a window"));
}

void Updater::plan_calls(const UseOrder& order) {
  std::map<int, size_t> window_at;  // window of the plan -> index, in the order of first uses
  std::vector<size_t> window_of_unit(static_cast<size_t>(job_.units()));
  for (int unit : order.first_uses(job_.units())) {
    const int planned = job_.plan.window_of_unit.empty() ? unit : job_.plan.window_of_unit[static_cast<size_t>(unit)];
    const auto [at, added] = window_at.emplace(planned, windows_.size());
    if (added) windows_.emplace_back();
    windows_[at->second].units.push_back(unit);
    window_of_unit[static_cast<size_t>(unit)] = at->second;
  }
  const std::vector<UpdateTarget>& targets = store_.targets();
  std::vector<bool> planned(targets.size(), false);
  const auto add_batches = [&](const Plan& plan, int slot) {
    for (const PlanBatch& batch : plan.batches) {
      if (batch.slot != slot) continue;
      UpdateCall call;
      for (size_t i = 0; i < targets.size(); ++i)
        if (std::find(batch.tensors.begin(), batch.tensors.end(), targets[i].tensor) != batch.tensors.end()) call.targets.push_back(i);
      if (call.targets.empty()) continue;
      for (size_t i : call.targets) planned[i] = true;
      call.rule = job_.rule_of(targets[call.targets.front()].tensor);
      windows_[window_of_unit[static_cast<size_t>(targets[call.targets.front()].unit)]].calls.push_back(std::move(call));
    }
  };
  if (job_.owned()) {
    add_batches(job_.plan, job_.slot);
    add_batches(job_.vote_plan, job_.shard);
  }
  // Everything else of a window that one rule updates shares a call.
  std::map<std::pair<size_t, int>, std::vector<size_t>> rest;
  for (size_t i = 0; i < targets.size(); ++i)
    if (!planned[i]) rest[{window_of_unit[static_cast<size_t>(targets[i].unit)], job_.rule_of(targets[i].tensor)}].push_back(i);
  for (auto& [key, indices] : rest) windows_[key.first].calls.push_back({key.second, std::move(indices)});
}

UpdateCounters Updater::counters() const {
  UpdateCounters sum;
  for (const auto& rule : job_.rules.rules) {
    sum.newton_schulz_calls += rule->counters().newton_schulz_calls;
    sum.newton_schulz_guard_events += rule->counters().newton_schulz_guard_events;
  }
  return sum;
}

void Updater::run(const UpdateCall& call, const std::vector<Tensor>& gathered) {
  std::vector<UpdateItem> items = items_of(job_, store_, call, gathered);
  UpdateRule& rule = *job_.rules.rules[static_cast<size_t>(call.rule)];
  Stream& stream = job_.backend.compute_stream();
  if (rule.agreement() == Agreement::vote)
    for (size_t i = 0; i < items.size(); ++i) items[i].vote = votes_->vote_of(call.targets[i]);
  else
    rule.local(job_.backend, stream, items);
  rule.global(job_.backend, stream, items);
}

UpdateCounters Updater::update(std::span<const StepValues> values, bool observe_votes) {
  observe_votes = observe_votes && votes_->any();
  const UpdateCounters before = counters();
  for (size_t rule = 0; rule < job_.rules.rules.size(); ++rule) {
    StepValues of_rule = values[rule];
    // A worker's own gradient is its share of the mean times the number of workers.
    if (job_.rules.rules[rule]->agreement() == Agreement::vote) of_rule.gradient_scale *= job_.workers();
    job_.rules.rules[rule]->prepare(job_.backend, job_.backend.compute_stream(), of_rule);
  }
  if (votes_->any()) votes_->run(values, observe_votes);
  publisher_.begin_publish();
  std::vector<Tensor> gathered(static_cast<size_t>(job_.units()));
  for (const Window& window : windows_) {
    // Masters must not change while their values still travel.
    for (int unit : window.units) publisher_.before_update(unit);
    if (job_.options.distribution == Distribution::gather)
      for (size_t i = 0; i < window.units.size(); ++i)
        gathered[static_cast<size_t>(window.units[i])] =
            reducer_.gather_reduced(window.units[i], job_.alone() ? Tensor() : gather_pool_[i]);
    {
      const TraceSpan span(job_.options.trace, "compute", "update", text("update ", job_.unit_name(window.units.front())));
      for (const UpdateCall& call : window.calls) run(call, gathered);
    }
    for (int unit : window.units) publisher_.publish(unit);
    publisher_.gather_published();
  }
  votes_->finish(observe_votes);
  store_.average_buffers();
  UpdateCounters done = counters();
  done.newton_schulz_calls -= before.newton_schulz_calls;
  done.newton_schulz_guard_events -= before.newton_schulz_guard_events;
  return done;
}

}  // namespace dmuon
