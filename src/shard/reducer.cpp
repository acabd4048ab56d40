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

// A buffer per region, from `begin` of its unit until `outstanding` further units have begun; to the end of the pass, `uses`,
// where there are not as many.
BufferPlan plan_gradient_buffers(std::vector<const Region*>& regions, const std::vector<int>& begin, const std::vector<int>& end,
                                 int outstanding, int uses) {
  const auto begin_of = [&](const Region* region) { return begin[static_cast<size_t>(region->unit)]; };
  std::stable_sort(regions.begin(), regions.end(), [&](const Region* a, const Region* b) { return begin_of(a) < begin_of(b); });
  std::vector<int> units;  // as they begin
  for (const Region* region : regions)
    if (units.empty() || units.back() != region->unit) units.push_back(region->unit);
  std::vector<Lifetime> lifetimes;
  size_t place = 0;  // in units
  for (const Region* region : regions) {
    if (units[place] != region->unit) ++place;
    const int last = end[static_cast<size_t>(region->unit)];
    const size_t later = place + static_cast<size_t>(outstanding) + 1;
    const int until = later < units.size() ? begin[static_cast<size_t>(units[later])] - 1 : uses;
    lifetimes.push_back({begin_of(region), std::max(last, until), region->elements});
  }
  return plan_buffers(lifetimes);
}

}  // namespace

Reducer::Reducer(ShardJob& job, UnitStore& store, const UseOrder& order) : job_(job), store_(store) {
  const auto units = static_cast<size_t>(job.units());
  units_.resize(units);
  regions_.resize(static_cast<size_t>(job.region_count()));
  uses_.assign(units, 0);
  for (int p = order.forward_uses; p < order.uses(); ++p) ++uses_[static_cast<size_t>(order.units[static_cast<size_t>(p)])];
  order_ = order.first_uses(job.units());
  std::reverse(order_.begin(), order_.end());
  std::stable_partition(order_.begin(), order_.end(), [&](int unit) { return uses_[static_cast<size_t>(unit)] > 0; });
  for (int unit = 0; unit < job.units(); ++unit)
    for (const Region& region : job.regions(unit)) keep(region);
  make_pools(order);
}

// Decides whether the region collects until the end of the step, and where.
void Reducer::keep(const Region& region) {
  RegionState& s = state(region);
  const bool here = !region.moves() || job_.replicated();
  s.narrow = region.moves() && job_.options.gradient_dtype != DType::float32;
  s.kept = here || (job_.stage(region.unit) == 1 && !job_.options.reduce_every_micro_batch);
  if (!s.kept) return;
  s.full = here ? store_.memory(region).slot_gradient
                : job_.allocate_shared(job_.gradients, region.elements, DType::float32, MemoryCategory::gradients,
                                       text("gradients of ", job_.unit_name(region.unit)));
  bind(region);
}

void Reducer::make_pools(const UseOrder& order) {
  std::vector<const Region*> pooled, narrow;
  for (int unit = 0; unit < job_.units(); ++unit)
    for (const Region& region : job_.regions(unit)) {
      if (!state(region).kept) pooled.push_back(&region);
      if (state(region).narrow) narrow.push_back(&region);
    }
  BackwardSpans spans = spans_of(order, units_.size());
  // A unit stays open until those before it in the order of reductions have left.
  for (size_t i = 1; i < order_.size(); ++i) {
    int& end = spans.end[static_cast<size_t>(order_[i])];
    end = std::max(end, spans.end[static_cast<size_t>(order_[i - 1])]);
  }
  const auto make_pool = [&](std::vector<const Region*>& members, const std::vector<int>& begin, DType dtype, int RegionState::*buffer_of,
                             std::vector<PoolBuffer>& pool) {
    const BufferPlan plan = plan_gradient_buffers(members, begin, spans.end, job_.options.outstanding_reduces, order.uses());
    for (size_t i = 0; i < members.size(); ++i) state(*members[i]).*buffer_of = plan.buffer[i];
    for (size_t i = 0; i < plan.elements.size(); ++i)
      pool.push_back({job_.allocate_shared(job_.gradients, plan.elements[i], dtype, MemoryCategory::gradients,
                                           text("pool of ", name_of(dtype), " gradients ", i)),
                      {}});
  };
  make_pool(pooled, spans.begin, DType::float32, &RegionState::buffer, pool_);
  make_pool(narrow, spans.end, job_.options.gradient_dtype, &RegionState::wire, wire_pool_);
}

void Reducer::begin_step(int64_t micro_batches) {
  micro_batches_ = 0;
  announced_ = micro_batches;
  for (int unit = 0; unit < job_.units(); ++unit)
    for (const Region& region : job_.regions(unit)) {
      if (!state(region).kept) continue;
      for (const UnitLayout::Entry& entry : region.entries) job_.parameter(entry.tensor).state->gradient->defined = false;
    }
}

void Reducer::begin_micro_batch() {
  if (announced_ > 0 && micro_batches_ >= announced_)
    throw ConfigError(text("micro-batch ", micro_batches_ + 1, " of a step that was announced with ", announced_));
  next_ = 0;
  for (int unit = 0; unit < job_.units(); ++unit) {
    state(unit) = {false, uses_[static_cast<size_t>(unit)]};
  }
}

void Reducer::bind(const Region& region) {
  for (const UnitLayout::Entry& entry : region.entries) {
    const ParameterDeclaration& parameter = job_.parameter(entry.tensor);
    parameter.state->gradient->tensor = state(region).full.flat(entry.offset - region.begin, entry.elements).reshape(parameter.shape);
    parameter.state->gradient->defined = false;
  }
}

void Reducer::enter_backward(int unit) {
  for (const Region& region : job_.regions(unit)) open(region);
}

// Nothing is zeroed: the first contribution overwrites.
void Reducer::open(const Region& region) {
  RegionState& s = state(region);
  if (s.kept || s.full.defined()) return;
  PoolBuffer& buffer = pool_[static_cast<size_t>(s.buffer)];
  job_.wait(buffer.sent, "gradient buffer of", region.unit);
  buffer.sent = Event();
  s.full = buffer.memory.flat(0, region.elements);
  bind(region);
}

void Reducer::leave_backward(int unit) {
  UnitState& s = state(unit);
  if (--s.uses > 0) return;
  s.ready = true;
  dispatch_ready();
}

void Reducer::end_micro_batch() {
  for (UnitState& s : units_) s.ready = true;  // also what the model does not use
  dispatch_ready();
  ++micro_batches_;
}

void Reducer::dispatch_ready() {
  while (next_ < order_.size() && state(order_[next_]).ready) {
    const int unit = order_[next_++];
    for (const Region& region : job_.regions(unit))
      if (!state(region).kept || last_micro_batch()) reduce(region);
  }
}

// A gradient that received no contribution counts as zeros, and so does the padding between tensors.
void Reducer::complete(const Region& region) {
  const RegionState& s = state(region);
  Stream& stream = job_.backend.compute_stream();
  int64_t end = 0;
  const auto fill_hole = [&](int64_t until) {
    if (end < until) job_.backend.zero(stream, s.full.flat(end, until - end));
  };
  for (const UnitLayout::Entry& entry : region.entries) {
    fill_hole(entry.offset - region.begin);
    GradientSlot& slot = *job_.parameter(entry.tensor).state->gradient;
    if (!slot.defined) job_.backend.zero(stream, slot.tensor);
    slot.defined = true;
    end = entry.offset - region.begin + entry.elements;
  }
  fill_hole(region.elements);
}

void Reducer::reduce(const Region& region) {
  RegionState& s = state(region);
  open(region);  // it alone: the unit's other region may be on its way already
  complete(region);
  s.reduced = true;
  if (!region.moves()) return;
  Tensor wire = s.full;
  if (s.narrow) {
    PoolBuffer& buffer = wire_pool_[static_cast<size_t>(s.wire)];
    job_.wait(buffer.sent, "gradient buffer of", region.unit);
    wire = buffer.memory.flat(0, region.elements);
    job_.backend.optimizer().convert(job_.backend.compute_stream(), {s.full, wire});
  }
  // Replicated: every rank reduces its slot in place, then gathers the others'.
  const Tensor result = job_.replicated() ? s.full.flat(region.slot.begin, region.slot.count()) : store_.memory(region).slot_gradient;
  s.sent = scatter(region, wire, result, !s.kept && micro_batches_ > 0);
  if (job_.replicated()) s.sent = gather(region, s.full, s.sent);
  if (s.narrow) wire_pool_[static_cast<size_t>(s.wire)].sent = s.sent;
  if (!s.kept) release(region);
}

// The backward is through with the region's pool buffer; others may have it once it was sent.
void Reducer::release(const Region& region) {
  RegionState& s = state(region);
  if (!s.narrow) pool_[static_cast<size_t>(s.buffer)].sent = s.sent;
  s.full = Tensor();
  for (const UnitLayout::Entry& entry : region.entries) {
    GradientSlot& slot = *job_.parameter(entry.tensor).state->gradient;
    slot.tensor = Tensor();
    slot.defined = false;
  }
}

// Inside the node over the coarse segments, then over the slots of the column; sums in rank order at both levels.
Event Reducer::scatter(const Region& region, const Tensor& wire, const Tensor& result, bool accumulate) {
  Event ready = job_.backend.compute_stream().record();
  const Tensor segment = wire.flat(region.coarse.begin, region.coarse.count());
  if (region.inside_node()) {
    const bool last = !region.between_nodes();
    ready = job_.start(job_.gradients.shard, ready, "reduce", region.unit, wire.bytes(), [&](Communicator& group, Stream& stream) {
      group.reduce_scatter_v(stream, wire, region.shard_cuts, last ? result : segment, last && accumulate);
    });
  }
  if (region.between_nodes())
    ready = job_.start(job_.gradients.column, ready, "reduce", region.unit, segment.bytes(), [&](Communicator& group, Stream& stream) {
      group.reduce_scatter_v(stream, segment, region.column_cuts, result, accumulate);
    });
  return ready;
}

Event Reducer::gather(const Region& region, const Tensor& full, Event ready) {
  if (region.between_nodes())
    ready =
        job_.start(job_.gradients.column, ready, "gather gradients", region.unit, full.bytes(), [&](Communicator& group, Stream& stream) {
          group.all_gather_v(stream, full.flat(region.coarse.begin, region.coarse.count()), region.column_cuts);
        });
  if (region.inside_node())
    ready = job_.start(job_.gradients.shard, ready, "gather gradients", region.unit, full.bytes(),
                       [&](Communicator& group, Stream& stream) { group.all_gather_v(stream, full, region.shard_cuts); });
  return ready;
}

void Reducer::finish() {
  for (int unit : order_)
    for (const Region& region : job_.regions(unit))
      if (state(region).kept && !state(region).reduced) reduce(region);
  for (int unit : order_)
    for (const Region& region : job_.regions(unit)) {
      job_.wait(state(region).sent, "gradients of", unit);
      state(region).sent = Event();
      state(region).reduced = false;
    }
}

Tensor Reducer::gather_reduced(int unit, const Tensor& buffer) {
  const Region& region = job_.regions(unit).front();
  if (std::none_of(region.entries.begin(), region.entries.end(), [&](const auto& entry) { return job_.whole(entry.tensor); })) return {};
  const Tensor& mine = store_.memory(region).slot_gradient;
  if (!region.moves()) return mine;
  const Tensor full = buffer.flat(0, region.elements);
  job_.backend.copy(job_.backend.compute_stream(), mine, full.flat(region.slot.begin, region.slot.count()));
  job_.wait(gather(region, full, job_.backend.compute_stream().record()), "gradients of", unit);
  return full;
}

}  // namespace dmuon
