#include "shard/unit_store.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon {

UnitStore::UnitStore(ShardJob& job) : job_(job), units_(static_cast<size_t>(job.units())) {
  const auto& parameters = job.inventory().parameters();
  full_state_.resize(parameters.size());
  buffer_offset_.assign(parameters.size(), -1);
  int64_t buffer_elements = 0;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (job.is_buffer(static_cast<int>(i))) {
      buffer_offset_[i] = buffer_elements;
      buffer_elements += round_up(parameters[i].shape.elements(), tensor_alignment);
    }
  if (buffer_elements > 0) {
    buffers_ = job.allocate(buffer_elements, DType::float32, MemoryCategory::parameters, "buffers of the model");
    job.backend.zero(job.backend.compute_stream(), buffers_);
    for (size_t i = 0; i < parameters.size(); ++i)
      if (buffer_offset_[i] >= 0)
        parameters[i].state->value = buffers_.flat(buffer_offset_[i], parameters[i].shape.elements()).reshape(parameters[i].shape);
  }
  for (int unit = 0; unit < job.units(); ++unit) {
    build_unit(unit);
    for (const Region& region : job.regions(unit)) {
      add_held(region);
      add_targets(region);
    }
    if (resident(unit)) bind(unit, units_[static_cast<size_t>(unit)].full);
  }
}

void UnitStore::build_unit(int index) {
  UnitMemory& unit = units_[static_cast<size_t>(index)];
  if (job_.stage(index) != 3) {
    unit.full = job_.allocate_shared(job_.parameters, job_.layout(index).elements, job_.options.compute_dtype, MemoryCategory::parameters,
                                     text("parameters of ", job_.unit_name(index)));
    job_.backend.zero(job_.backend.compute_stream(), unit.full);
  }
  unit.regions.resize(job_.regions(index).size());
  for (const Region& region : job_.regions(index)) build_region(region);
}

void UnitStore::build_region(const Region& region) {
  RegionMemory& memory = this->memory(region);
  const std::string name = text(region.vote ? "votes of " : "", job_.unit_name(region.unit));
  const DType dtype = job_.options.compute_dtype;
  Stream& stream = job_.backend.compute_stream();
  if (const Tensor& full = unit(region.unit).full; full.defined()) {
    memory.full = full.flat(region.begin, region.elements);
    memory.coarse = memory.full.flat(region.coarse.begin, region.coarse.count());
  } else {
    memory.coarse = job_.allocate(region.coarse.count(), dtype, MemoryCategory::parameters, text("segment of ", name));
    job_.backend.zero(stream, memory.coarse);
  }
  const int64_t count = region.masters.count();
  memory.slot = job_.replicated() ? memory.full : memory.coarse.flat(region.slot.begin - region.coarse.begin, count);
  memory.master = memory.slot;
  if (dtype != DType::float32) {
    memory.master = job_.allocate(count, DType::float32, MemoryCategory::optimizer_state, text("masters of ", name));
    job_.backend.zero(stream, memory.master);
  }
  memory.slot_gradient = job_.allocate(count, DType::float32, MemoryCategory::gradients, text("gradient slot of ", name));
  job_.backend.zero(stream, memory.slot_gradient);
}

std::vector<Tensor> UnitStore::make_state(int tensor, int64_t elements) {
  std::vector<Tensor> state;
  const int rule = job_.rule_of(tensor);
  if (rule < 0) return state;
  for (const StateSpecification& specification : job_.rules.rules[static_cast<size_t>(rule)]->state()) {
    state.push_back(job_.allocate(elements, DType::float32, MemoryCategory::optimizer_state,
                                  text(job_.parameter(tensor).name, "#", specification.name)));
    job_.backend.zero(job_.backend.compute_stream(), state.back());
  }
  return state;
}

// The disjoint cover of the model by ranks (of a region of votes: by the ranks of a replica): what checkpoints write and
// what the norm counts.
void UnitStore::add_held(const Region& region) {
  const RegionMemory& memory = this->memory(region);
  if (!job_.owned())
    for (const UnitLayout::Entry& entry : region.entries)
      if (job_.replicated() || job_.whole(entry.tensor))
        full_state_[static_cast<size_t>(entry.tensor)] = make_state(entry.tensor, entry.elements);
  for (const Piece& piece : job_.plan_of(region).pieces(job_.slot_in_plan(region))) {
    if (piece.unit != region.unit) continue;
    const int64_t offset = piece.offset - region.masters.begin;  // in the masters
    HeldPiece held;
    held.piece = piece;
    held.piece.offset += region.begin;
    held.rule = job_.rule_of(piece.tensor);
    held.vote = region.vote;
    const int64_t buffer = buffer_offset_[static_cast<size_t>(piece.tensor)];
    held.master = buffer >= 0 ? buffers_.flat(buffer + piece.first, piece.count) : memory.master.flat(offset, piece.count);
    held.gradient = memory.slot_gradient.flat(offset, piece.count);
    const auto& full = full_state_[static_cast<size_t>(piece.tensor)];
    if (full.empty())
      held.state = make_state(piece.tensor, piece.count);
    else
      for (const Tensor& state : full) held.state.push_back(state.flat(piece.first, piece.count));
    held_.push_back(std::move(held));
  }
}

void UnitStore::add_targets(const Region& region) {
  const RegionMemory& memory = this->memory(region);
  const auto add = [&](int tensor, int64_t first, int64_t count, int64_t offset, const Tensor& parameter, const Tensor& gradient,
                       const std::vector<Tensor>& state) {
    UpdateTarget target{tensor, region.unit, region.vote, first, count, offset, parameter, gradient, state, {}};
    if (job_.options.compute_dtype != DType::float32)
      target.published = memory.slot.flat(offset - region.begin - region.masters.begin, count);
    targets_.push_back(std::move(target));
  };
  if (job_.replicated()) {
    for (const UnitLayout::Entry& entry : region.entries)
      if (job_.rule_of(entry.tensor) >= 0)
        add(entry.tensor, 0, entry.elements, entry.offset, memory.master.flat(entry.offset, entry.elements),
            memory.slot_gradient.flat(entry.offset, entry.elements), full_state_[static_cast<size_t>(entry.tensor)]);
    return;
  }
  const bool gather = job_.options.distribution == Distribution::gather;
  if (gather)
    for (const UnitLayout::Entry& entry : region.entries)
      if (job_.whole(entry.tensor))
        add(entry.tensor, 0, entry.elements, entry.offset, memory.full.flat(entry.offset, entry.elements), Tensor(),
            full_state_[static_cast<size_t>(entry.tensor)]);
  for (const HeldPiece& held : held_) {
    if (held.piece.unit != region.unit || held.vote != region.vote || held.rule < 0 || (gather && job_.whole(held.piece.tensor))) continue;
    if (job_.whole(held.piece.tensor) && held.piece.count != job_.parameter(held.piece.tensor).shape.elements())
      throw ConfigError(text("the plan cuts ", job_.parameter(held.piece.tensor).name, ", whose rule ",
                             job_.rules.rules[static_cast<size_t>(held.rule)]->name(), " needs it whole"));
    add(held.piece.tensor, held.piece.first, held.piece.count, held.piece.offset, held.master, held.gradient, held.state);
  }
}

void UnitStore::bind(int index, const Tensor& full) {
  for (const UnitLayout::Entry& entry : job_.layout(index).entries) {
    if (job_.is_buffer(entry.tensor)) continue;
    const ParameterDeclaration& parameter = job_.parameter(entry.tensor);
    parameter.state->value = full.flat(entry.offset, entry.elements).reshape(parameter.shape);
  }
}

void UnitStore::unbind(int index) {
  for (const UnitLayout::Entry& entry : job_.layout(index).entries)
    if (!job_.is_buffer(entry.tensor)) job_.parameter(entry.tensor).state->value = Tensor();
}

void UnitStore::copy_master_to_slot(int index) {
  for (const RegionMemory& memory : unit(index).regions)
    if (memory.slot.dtype() != DType::float32) job_.backend.copy(job_.backend.compute_stream(), memory.master, memory.slot);
}

void UnitStore::complete_copies() {
  if (job_.alone() || job_.owned()) return;
  Stream& stream = job_.backend.compute_stream();
  for (int unit = 0; unit < job_.units(); ++unit) {
    const Region& region = job_.regions(unit).front();  // there are no votes
    if (job_.replicated()) job_.complete(memory(region).master, region);
    size_t states = 0;
    for (const UnitLayout::Entry& entry : region.entries) states = std::max(states, full_state_[static_cast<size_t>(entry.tensor)].size());
    if (states == 0) continue;
    const Tensor staging = job_.allocate(region.elements, DType::float32, MemoryCategory::communication, "state on its way");
    for (size_t s = 0; s < states; ++s) {
      job_.backend.zero(stream, staging);
      for (const HeldPiece& held : held_)
        if (held.piece.unit == unit && s < full_state_[static_cast<size_t>(held.piece.tensor)].size())
          job_.backend.copy(stream, held.state[s], staging.flat(held.piece.offset, held.piece.count));
      job_.complete(staging, region);
      for (const UnitLayout::Entry& entry : region.entries)
        if (const auto& full = full_state_[static_cast<size_t>(entry.tensor)]; s < full.size())
          job_.backend.copy(stream, staging.flat(entry.offset, entry.elements), full[s]);
    }
  }
}

void UnitStore::average_buffers() {
  if (job_.alone() || !buffers_.defined()) return;
  // In float64: the mean of equal values is that value.
  Stream& stream = job_.backend.compute_stream();
  const Tensor sums = job_.allocate(buffers_.elements(), DType::float64, MemoryCategory::communication, "sums of buffers");
  job_.backend.copy(stream, buffers_, sums);
  job_.add_over_ranks(sums, "average of buffers");
  std::vector<double> host(static_cast<size_t>(sums.elements()));
  job_.backend.copy_to_host(stream, sums, host.data());
  std::vector<float> means;
  for (double sum : host) means.push_back(static_cast<float>(sum / job_.world.size()));
  job_.backend.copy_from_host(stream, means.data(), buffers_);
}

// Pieces of other ranks count as zeros in a sum, so every element comes from its one holder.
void UnitStore::share_buffers() {
  if (job_.alone() || !buffers_.defined()) return;
  Stream& stream = job_.backend.compute_stream();
  const Tensor shared = job_.allocate(buffers_.elements(), DType::float32, MemoryCategory::communication, "buffers on their way");
  job_.backend.zero(stream, shared);
  for (const HeldPiece& held : held_)
    if (const int64_t offset = buffer_offset_[static_cast<size_t>(held.piece.tensor)]; offset >= 0)
      job_.backend.copy(stream, held.master, shared.flat(offset + held.piece.first, held.piece.count));
  job_.add_over_ranks(shared, "buffers");
  job_.backend.copy(stream, shared, buffers_);
}

}  // namespace dmuon
