#include "shard/reducer.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Positions at which units begin and finish their backward; units that are never used come after everything.
struct BackwardSpans {
  std::vector<int> begin, end;
};

BackwardSpans spans_of(const UseOrder& order, size_t units) {
  BackwardSpans spans{std::vector<int>(units, order.uses()), std::vector<int>(units, order.uses())};
  std::vector<bool> used(units, false);
  for (int p = order.forward_uses; p < order.uses(); ++p) {
    const auto unit = static_cast<size_t>(order.units[static_cast<size_t>(p)]);
    if (!used[unit]) spans.begin[unit] = p;
    used[unit] = true;
    spans.end[unit] = order.left[static_cast<size_t>(p)] - 1;
  }
  return spans;
}

// A buffer per unit, from `begin` of the unit until `outstanding` further ones have begun.
BufferPlan plan_gradient_buffers(std::vector<int>& units, const std::vector<int>& begin, const std::vector<int>& end,
                                 const std::vector<int64_t>& elements, int outstanding) {
  std::stable_sort(units.begin(), units.end(), [&](int a, int b) { return begin[static_cast<size_t>(a)] < begin[static_cast<size_t>(b)]; });
  std::vector<Lifetime> lifetimes;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto unit = static_cast<size_t>(units[i]);
    const size_t later = i + static_cast<size_t>(outstanding) + 1;
    const int until = later < units.size() ? begin[static_cast<size_t>(units[later])] - 1 : end[unit];
    lifetimes.push_back({begin[unit], std::max(end[unit], until), elements[unit]});
  }
  return plan_buffers(lifetimes);
}

}  // namespace

Reducer::Reducer(ShardJob& job, UnitStore& store, const UseOrder& order) : job_(job), store_(store) {
  const auto units = static_cast<size_t>(job.units());
  states_.resize(units);
  uses_.assign(units, 0);
  for (int p = order.forward_uses; p < order.uses(); ++p) ++uses_[static_cast<size_t>(order.units[static_cast<size_t>(p)])];
  order_ = order.first_uses(job.units());
  std::reverse(order_.begin(), order_.end());
  std::stable_partition(order_.begin(), order_.end(), [&](int unit) { return uses_[static_cast<size_t>(unit)] > 0; });

  narrow_ = job.options.gradient_dtype != DType::float32 && !job.alone();
  buffer_of_.assign(units, -1);
  wire_of_.assign(units, -1);
  std::vector<int64_t> elements;
  std::vector<int> pooled, all;
  for (int unit = 0; unit < job.units(); ++unit) {
    elements.push_back(job.layout(unit).elements);
    all.push_back(unit);
    State& s = state(unit);
    s.kept = job.alone() || job.replicated() || (job.stage(unit) == 1 && !job.options.reduce_every_micro_batch);
    if (!s.kept) {
      pooled.push_back(unit);
    } else if (job.alone() || job.replicated()) {
      s.full = store.unit(unit).slot_gradient;
    } else {
      s.full = job.allocate_shared(job.gradients, elements.back(), DType::float32, MemoryCategory::gradients,
                                   text("gradients of ", job.unit_name(unit)));
    }
    if (s.kept) bind(unit);
  }
  BackwardSpans spans = spans_of(order, units);
  // A unit stays open until those before it in the order of reductions have left.
  for (size_t i = 1; i < order_.size(); ++i) {
    int& end = spans.end[static_cast<size_t>(order_[i])];
    end = std::max(end, spans.end[static_cast<size_t>(order_[i - 1])]);
  }
  const int outstanding = job.options.outstanding_reduces;
  const auto make_pool = [&](std::vector<int>& members, const std::vector<int>& begin, DType dtype, std::vector<int>& buffer_of,
                             std::vector<PoolBuffer>& pool) {
    const BufferPlan plan = plan_gradient_buffers(members, begin, spans.end, elements, outstanding);
    for (size_t i = 0; i < members.size(); ++i) buffer_of[static_cast<size_t>(members[i])] = plan.buffer[i];
    for (size_t i = 0; i < plan.elements.size(); ++i)
      pool.push_back({job.allocate_shared(job.gradients, plan.elements[i], dtype, MemoryCategory::gradients,
                                          text("pool of ", name_of(dtype), " gradients ", i)),
                      {}});
  };
  make_pool(pooled, spans.begin, DType::float32, buffer_of_, pool_);
  if (narrow_) make_pool(all, spans.end, job.options.gradient_dtype, wire_of_, wire_pool_);
}

void Reducer::begin_step(int64_t micro_batches) {
  micro_batches_ = 0;
  announced_ = micro_batches;
  for (int unit = 0; unit < job_.units(); ++unit) {
    if (!state(unit).kept) continue;
    for (int parameter : job_.inventory().units()[static_cast<size_t>(unit)].parameters)
      job_.parameter(parameter).state->gradient->defined = false;
  }
}

void Reducer::begin_micro_batch() {
  if (announced_ > 0 && micro_batches_ >= announced_)
    throw ConfigError(text("micro-batch ", micro_batches_ + 1, " of a step that was announced with ", announced_));
  next_ = 0;
  for (int unit = 0; unit < job_.units(); ++unit) {
    State& s = state(unit);
    s.ready = false;
    s.uses = uses_[static_cast<size_t>(unit)];
  }
}

void Reducer::bind(int unit) {
  for (const UnitLayout::Entry& entry : job_.layout(unit).entries) {
    const ParameterDeclaration& parameter = job_.parameter(entry.tensor);
    parameter.state->gradient->tensor = state(unit).full.flat(entry.offset, entry.elements).reshape(parameter.shape);
    parameter.state->gradient->defined = false;
  }
}

// Nothing is zeroed: the first contribution overwrites.
void Reducer::open(int unit) {
  State& s = state(unit);
  if (s.kept || s.full.defined()) return;
  PoolBuffer& buffer = pool_[static_cast<size_t>(buffer_of_[static_cast<size_t>(unit)])];
  job_.wait(buffer.sent, "gradient buffer of", unit);
  buffer.sent = Event();
  s.full = buffer.memory.flat(0, job_.layout(unit).elements);
  bind(unit);
}

void Reducer::leave_backward(int unit) {
  State& s = state(unit);
  if (--s.uses > 0) return;
  s.ready = true;
  dispatch_ready();
}

void Reducer::end_micro_batch() {
  for (State& s : states_) s.ready = true;  // also what the model does not use
  dispatch_ready();
  ++micro_batches_;
}

void Reducer::dispatch_ready() {
  while (next_ < order_.size() && state(order_[next_]).ready) {
    const int unit = order_[next_++];
    if (!state(unit).kept || last_micro_batch()) reduce(unit);
  }
}

// A gradient that received no contribution counts as zeros, and so does the padding between tensors.
void Reducer::complete(int unit) {
  const State& s = state(unit);
  Stream& stream = job_.backend.compute_stream();
  int64_t end = 0;
  const auto fill_hole = [&](int64_t until) {
    if (end < until) job_.backend.zero(stream, s.full.flat(end, until - end));
  };
  for (const UnitLayout::Entry& entry : job_.layout(unit).entries) {
    fill_hole(entry.offset);
    GradientSlot& slot = *job_.parameter(entry.tensor).state->gradient;
    if (!slot.defined) job_.backend.zero(stream, slot.tensor);
    slot.defined = true;
    end = entry.offset + entry.elements;
  }
  fill_hole(job_.layout(unit).elements);
}

void Reducer::reduce(int unit) {
  State& s = state(unit);
  open(unit);
  complete(unit);
  s.reduced = true;
  if (job_.alone()) return;
  Tensor wire = s.full;
  if (narrow_) {
    PoolBuffer& buffer = wire_pool_[static_cast<size_t>(wire_of_[static_cast<size_t>(unit)])];
    job_.wait(buffer.sent, "gradient buffer of", unit);
    wire = buffer.memory.flat(0, s.full.elements());
    job_.backend.optimizer().convert(job_.backend.compute_stream(), {s.full, wire});
  }
  // Replicated: every rank reduces its slot in place, then gathers the others'.
  const ShardJob::Range slot = job_.slot_range(unit);
  const Tensor result = job_.replicated() ? s.full.flat(slot.begin, slot.count()) : store_.unit(unit).slot_gradient;
  s.sent = scatter(unit, wire, result, !s.kept && micro_batches_ > 0);
  if (job_.replicated()) s.sent = gather(unit, s.full, s.sent);
  if (narrow_) wire_pool_[static_cast<size_t>(wire_of_[static_cast<size_t>(unit)])].sent = s.sent;
  if (s.kept) return;
  PoolBuffer& buffer = pool_[static_cast<size_t>(buffer_of_[static_cast<size_t>(unit)])];
  if (!narrow_) buffer.sent = s.sent;
  s.full = Tensor();
  for (int parameter : job_.inventory().units()[static_cast<size_t>(unit)].parameters) {
    GradientSlot& slot_of = *job_.parameter(parameter).state->gradient;
    slot_of.tensor = Tensor();
    slot_of.defined = false;
  }
}

// Inside the node over the coarse segments, then over the slots of the column; sums in rank order at both levels.
Event Reducer::scatter(int unit, const Tensor& wire, const Tensor& result, bool accumulate) {
  Event ready = job_.backend.compute_stream().record();
  const ShardJob::Range coarse = job_.coarse_range(unit);
  const Tensor segment = wire.flat(coarse.begin, coarse.count());
  if (job_.gradients.shard) {
    const bool last = !job_.gradients.column;
    ready = job_.start(job_.gradients.shard, ready, "reduce", unit, wire.bytes(), [&](Communicator& group, Stream& stream) {
      group.reduce_scatter_v(stream, wire, job_.coarse_cuts(unit), last ? result : segment, last && accumulate);
    });
  }
  if (job_.gradients.column)
    ready = job_.start(job_.gradients.column, ready, "reduce", unit, segment.bytes(), [&](Communicator& group, Stream& stream) {
      group.reduce_scatter_v(stream, segment, job_.column_cuts(unit), result, accumulate);
    });
  return ready;
}

Event Reducer::gather(int unit, const Tensor& full, Event ready) {
  const ShardJob::Range coarse = job_.coarse_range(unit);
  if (job_.gradients.column)
    ready = job_.start(job_.gradients.column, ready, "gather gradients", unit, full.bytes(), [&](Communicator& group, Stream& stream) {
      group.all_gather_v(stream, full.flat(coarse.begin, coarse.count()), job_.column_cuts(unit));
    });
  if (job_.gradients.shard)
    ready = job_.start(job_.gradients.shard, ready, "gather gradients", unit, full.bytes(),
                       [&](Communicator& group, Stream& stream) { group.all_gather_v(stream, full, job_.coarse_cuts(unit)); });
  return ready;
}

void Reducer::finish() {
  for (int unit : order_)
    if (state(unit).kept && !state(unit).reduced) reduce(unit);
  for (int unit : order_) {
    job_.wait(state(unit).sent, "gradients of", unit);
    state(unit).sent = Event();
    state(unit).reduced = false;
  }
}

Tensor Reducer::gather_reduced(int unit, const Tensor& buffer) {
  const UnitLayout& layout = job_.layout(unit);
  if (std::none_of(layout.entries.begin(), layout.entries.end(), [&](const auto& entry) { return job_.whole(entry.tensor); })) return {};
  if (job_.alone()) return store_.unit(unit).slot_gradient;
  const ShardJob::Range slot = job_.slot_range(unit);
  const Tensor full = buffer.flat(0, layout.elements);
  job_.backend.copy(job_.backend.compute_stream(), store_.unit(unit).slot_gradient, full.flat(slot.begin, slot.count()));
  job_.wait(gather(unit, full, job_.backend.compute_stream().record()), "gradients of", unit);
  return full;
}

}  // namespace dmuon
