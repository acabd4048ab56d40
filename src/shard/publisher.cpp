#include "shard/publisher.h"

#include <algorithm>

#include "dmuon/core/text.h"
#include "shard/publish_form.h"

namespace dmuon {

Publisher::Publisher(ShardJob& job, UnitStore& store, const UseOrder& order) : job_(job), store_(store), order_(order) {
  const auto units = static_cast<size_t>(job.units());
  states_.resize(units);
  std::vector<int64_t> gathered(units, 0), widened(units, 0);
  for (size_t unit = 0; unit < units; ++unit) {
    const int64_t elements = job.layout(static_cast<int>(unit)).elements;
    if (job.stage(static_cast<int>(unit)) == 3) gathered[unit] = elements;
    if (job.widens()) widened[unit] = elements;
  }
  gathering_ = make_pass_schedule(order, gathered, job.options.look_ahead);
  widening_ = make_pass_schedule(order, widened, 0);
  for (size_t i = 0; i < gathering_.pool.size(); ++i)
    gather_pool_.push_back(job.allocate_shared(job.parameters, gathering_.pool[i], job.options.compute_dtype, MemoryCategory::parameters,
                                               text("pool of gathered values ", i)));
  for (size_t i = 0; i < widening_.pool.size(); ++i)
    widen_pool_.push_back(job.allocate(widening_.pool[i], DType::float32, MemoryCategory::parameters, text("pool of float32 values ", i)));
  forms_ = choose_publish_forms(job, store);
}

void Publisher::before_update(int unit) {
  State& s = state(unit);
  job_.wait(s.between_nodes, "publish", unit);
  job_.wait(s.published, "publish", unit);
  job_.wait(s.gathered, "publish", unit);
}

void Publisher::publish(int unit) {
  State& s = state(unit);
  s.published_now = true;
  if (job_.replicated()) return;
  const Event updated = job_.backend.compute_stream().record();
  for (const Region& region : job_.regions(unit)) {
    const RegionMemory& memory = store_.memory(region);
    const GatherForm form = forms_[static_cast<size_t>(region.index)];
    Event ready = updated;
    if (region.between_nodes()) {
      ready = job_.start(job_.parameters.column, ready, "publish", unit, memory.coarse.bytes(),
                         [&](Communicator& group, Stream& stream) { group.all_gather_v(stream, memory.coarse, region.column_cuts, form); });
      s.between_nodes = ready;
    }
    if (memory.full.defined() && region.inside_node())
      ready = job_.start(job_.parameters.shard, ready, "publish", unit, memory.full.bytes(),
                         [&](Communicator& group, Stream& stream) { group.all_gather_v(stream, memory.full, region.shard_cuts, form); });
    if (memory.full.defined() && region.moves()) s.published = ready;
  }
}

void Publisher::begin_publish() {
  filled_ = 0;
  for (State& s : states_) {
    s.pooled = Tensor();
    s.published_now = false;
  }
}

void Publisher::gather_published() {
  const int limit = std::min(job_.options.look_ahead + 1, order_.forward_uses);
  while (filled_ < limit && state(order_.units[static_cast<size_t>(filled_)]).published_now) gather(filled_++);
}

void Publisher::wait_all() {
  for (int unit = 0; unit < job_.units(); ++unit) before_update(unit);
}

void Publisher::begin_pass(bool with_backward) {
  end_ = with_backward ? order_.uses() : order_.forward_uses;
  fill_until(job_.options.look_ahead);
}

void Publisher::fill_until(int position) {
  for (; filled_ < end_ && filled_ <= position; ++filled_) gather(filled_);
}

void Publisher::gather(int position) {
  const auto p = static_cast<size_t>(position);
  if (gathering_.buffer[p] < 0 || !gathering_.fills[p]) return;
  const int unit = order_.units[p];
  State& s = state(unit);
  if (s.bound) throw ConfigError(text("unit ", job_.unit_name(unit), " is used again inside its own scope: scopes of units must nest"));
  const Tensor full = gather_pool_[static_cast<size_t>(gathering_.buffer[p])].flat(0, job_.layout(unit).elements);
  Stream& stream = *job_.parameters.shard.stream;
  // Whoever had the buffer before has been left, so its readers are on the compute stream already.
  stream.wait(s.between_nodes);
  const Event ready = job_.backend.compute_stream().record();
  for (const Region& region : job_.regions(unit)) {
    const Tensor data = full.flat(region.begin, region.elements);
    const Tensor& coarse = store_.memory(region).coarse;
    s.gathered = job_.start(job_.parameters.shard, ready, "gather", unit, data.bytes(), [&](Communicator& group, Stream& on) {
      job_.backend.copy(on, coarse, data.flat(region.coarse.begin, region.coarse.count()));
      group.all_gather_v(on, data, region.shard_cuts, forms_[static_cast<size_t>(region.index)]);
    });
  }
  s.pooled = full;
}

void Publisher::enter(int position) {
  fill_until(position + job_.options.look_ahead);
  const int unit = order_.units[static_cast<size_t>(position)];
  State& s = state(unit);
  if (s.pooled.defined())
    job_.wait(s.gathered, "values of", unit);
  else
    job_.wait(s.published, "values of", unit);
  if (s.bound) return;
  if (widening_.buffer[static_cast<size_t>(position)] >= 0) {
    const Tensor wide =
        widen_pool_[static_cast<size_t>(widening_.buffer[static_cast<size_t>(position)])].flat(0, job_.layout(unit).elements);
    job_.backend.optimizer().convert(job_.backend.compute_stream(), {values(unit), wide});
    store_.bind(unit, wide);
    s.bound = true;
  } else if (s.pooled.defined()) {
    store_.bind(unit, s.pooled);
    s.bound = true;
  }
}

void Publisher::pass_over(int position) {
  fill_until(position + job_.options.look_ahead);
  leave(position);
}

void Publisher::leave(int position) {
  const auto p = static_cast<size_t>(position);
  const int unit = order_.units[p];
  State& s = state(unit);
  const bool pooled = gathering_.buffer[p] >= 0, wide = widening_.buffer[p] >= 0;
  // A kept buffer stays; of values that are widened only the narrow ones may stay.
  if (s.bound && !(wide ? widening_.keeps[p] : gathering_.keeps[p])) {
    store_.unbind(unit);
    s.bound = false;
  }
  if (pooled && !gathering_.keeps[p]) s.pooled = Tensor();
}

void Publisher::end_pass() {
  for (int unit = 0; unit < job_.units(); ++unit) {
    State& s = state(unit);
    if (s.bound) store_.unbind(unit);
    s.bound = false;
    s.pooled = Tensor();
  }
  filled_ = 0;
}

const Tensor& Publisher::values(int unit) const {
  const State& s = states_[static_cast<size_t>(unit)];
  return s.pooled.defined() ? s.pooled : store_.unit(unit).full;
}

}  // namespace dmuon
