#include "dmuon/shard/sharded_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {

ShardedModel::ShardedModel(Backend& backend, Communicator& world, Model& model, RuleTable rules, Plan plan, ShardedModelOptions options)
    : backend_(backend),
      world_(world),
      model_(model),
      rules_(std::move(rules)),
      plan_(std::move(plan)),
      options_(std::move(options)),
      grid_(make_rank_grid(world.size(), 1)) {
  slot_ = grid_.slot_of(world.rank());
  if (plan_.slots != world.size()) throw CommunicationError(text("the plan has ", plan_.slots, " slots, the job ", world.size(), " ranks"));
  if (options_.distribution != Distribution::owner || options_.replicas != 1 || options_.stage != 2 || !options_.unit_stages.empty() ||
      options_.compute_dtype != DType::float32 || options_.gradient_dtype != DType::float32)
    throw ConfigError(text("distribution: only owner, one replica, stage 2 and float32 so far, asked for ", name_of(options_.distribution),
                           ", ", options_.replicas, " replicas, stage ", options_.stage));
  for (const auto& rule : rules_.rules)
    if (rule->agreement() != Agreement::mean)
      throw ConfigError(text("rule ", rule->name(), " agrees by vote, which this version cannot do"));
  for (const ParameterDeclaration& parameter : model.inventory().parameters())
    if (parameter.role == ParameterRole::buffer)
      throw ConfigError(text("parameter ", parameter.name, " is a buffer, which this version cannot agree on between ranks"));
  const std::vector<std::string> hashes = world.all_gather_text(hash_to_hex(plan_.hash()));
  for (size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      throw CommunicationError(text("rank ", r, " on ", world.host(static_cast<int>(r)), " made another plan (", hashes[r],
                                    ") than rank 0 (", hashes[0], "): do all ranks run the same build and configuration?"));
  if (!alone()) {
    gradient_group_ = world.split(0, world.rank(), "gradients");
    parameter_group_ = world.split(0, world.rank(), "parameters");
    gradient_stream_ = backend.make_communication_stream("gradients");
    parameter_stream_ = backend.make_communication_stream("parameters");
  }
  const auto& parameters = model.inventory().parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (rules_.rule_of[i] >= 0) name_order_.push_back(static_cast<int>(i));
  std::sort(name_order_.begin(), name_order_.end(),
            [&](int a, int b) { return parameters[static_cast<size_t>(a)].name < parameters[static_cast<size_t>(b)].name; });
  std::vector<int64_t> chunk_of(parameters.size(), 0);
  for (int index : name_order_) {
    first_chunk_.push_back(chunks_);
    chunk_of[static_cast<size_t>(index)] = chunks_;
    chunks_ += divide_up(parameters[static_cast<size_t>(index)].shape.elements(), plan_.cut_elements);
  }
  units_.resize(plan_.units.size());
  for (size_t unit = 0; unit < units_.size(); ++unit) build_unit(static_cast<int>(unit));
  for (const HeldPiece& held : held_)
    norm_offsets_.push_back(chunk_of[static_cast<size_t>(held.piece.tensor)] + held.piece.first / plan_.cut_elements);
  model_.set_unit_listener(this);
}

ShardedModel::~ShardedModel() {
  model_.set_unit_listener(nullptr);
  // Streams first: they finish work that uses the groups.
  gradient_stream_.reset();
  parameter_stream_.reset();
}

void ShardedModel::build_unit(int index) {
  const UnitLayout& layout = plan_.units[static_cast<size_t>(index)];
  const std::string& name = inventory().units()[static_cast<size_t>(index)].name;
  Unit& unit = units_[static_cast<size_t>(index)];
  Stream& stream = backend_.compute_stream();
  unit.values = backend_.allocate(Shape{layout.elements}, DType::float32, MemoryCategory::parameters, text("parameters of ", name));
  backend_.zero(stream, unit.values);
  const auto rank = static_cast<size_t>(slot_);
  const int64_t begin = layout.cuts[rank], end = layout.cuts[rank + 1];
  unit.slot_gradient = backend_.allocate(Shape{end - begin}, DType::float32, MemoryCategory::gradients, text("gradient slot of ", name));
  backend_.zero(stream, unit.slot_gradient);
  for (const UnitLayout::Entry& entry : layout.entries) {
    const ParameterDeclaration& parameter = inventory().parameters()[static_cast<size_t>(entry.tensor)];
    parameter.state->value = unit.values.flat(entry.offset, entry.elements).reshape(parameter.shape);
    if (alone()) parameter.state->gradient->tensor = unit.slot_gradient.flat(entry.offset, entry.elements).reshape(parameter.shape);
  }
  for (const Piece& piece : plan_.pieces(slot_)) {
    if (piece.unit != index) continue;
    HeldPiece held;
    held.piece = piece;
    held.rule = rules_.rule_of[static_cast<size_t>(piece.tensor)];
    held.master = unit.values.flat(piece.offset, piece.count);
    held.gradient = unit.slot_gradient.flat(piece.offset - begin, piece.count);
    if (held.rule >= 0)
      for (const StateSpecification& state : rules_.rules[static_cast<size_t>(held.rule)]->state()) {
        held.state.push_back(backend_.allocate(Shape{piece.count}, DType::float32, MemoryCategory::optimizer_state,
                                               text(inventory().parameters()[static_cast<size_t>(piece.tensor)].name, "#", state.name)));
        backend_.zero(stream, held.state.back());
      }
    held_.push_back(std::move(held));
  }
}

void ShardedModel::initialize(uint64_t seed) {
  constexpr int64_t chunk = int64_t{1} << 22;
  const int threads = backend_.information().threads;
  std::vector<float> host;
  for (const HeldPiece& held : held_) {
    const ParameterDeclaration& parameter = inventory().parameters()[static_cast<size_t>(held.piece.tensor)];
    for (int64_t done = 0; done < held.piece.count; done += chunk) {
      const int64_t count = std::min(chunk, held.piece.count - done);
      host.resize(static_cast<size_t>(count));
      if (!backend_.shape_only()) fill_initial(parameter, seed, held.piece.first + done, count, host.data(), threads);
      backend_.copy_from_host(backend_.compute_stream(), host.data(), held.master.flat(done, count));
    }
  }
  publish_all();
}

void ShardedModel::begin_step(int64_t) {
  micro_batches_ = 0;
  for (const ParameterDeclaration& parameter : inventory().parameters()) parameter.state->gradient->defined = false;
}

void ShardedModel::begin_micro_batch() {
  in_micro_batch_ = true;
  next_reduce_ = static_cast<int>(units_.size()) - 1;
  for (Unit& unit : units_) {
    unit.uses = 0;
    unit.ready = unit.reduced = false;
  }
}

void ShardedModel::enter_forward(int index) {
  phase_ = &exposed_.forward;
  Unit& unit = units_[static_cast<size_t>(index)];
  wait(unit.published);
  // Inside a backward this is a recomputation: not a further use.
  if (in_micro_batch_ && backward_depth_ == 0) ++unit.uses;
}

void ShardedModel::leave_forward(int) {}

void ShardedModel::enter_backward(int index) {
  phase_ = &exposed_.backward;
  ++backward_depth_;
  open_gradient(index);
}

void ShardedModel::leave_backward(int index) {
  --backward_depth_;
  Unit& unit = units_[static_cast<size_t>(index)];
  if (--unit.uses > 0) return;
  unit.ready = true;
  dispatch_ready();
}

// Gives the unit's parameters somewhere to put gradients. Nothing is zeroed: the first contribution overwrites.
void ShardedModel::open_gradient(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  if (alone() || unit.full_gradient.defined()) return;
  const UnitLayout& layout = plan_.units[static_cast<size_t>(index)];
  while (static_cast<int>(outstanding_.size()) >= options_.outstanding_reduces) {
    wait(outstanding_.front());
    outstanding_.pop_front();
  }
  unit.full_gradient = backend_.allocate(Shape{layout.elements}, DType::float32, MemoryCategory::gradients,
                                         text("gradients of ", inventory().units()[static_cast<size_t>(index)].name));
  for (const UnitLayout::Entry& entry : layout.entries) {
    const ParameterDeclaration& parameter = inventory().parameters()[static_cast<size_t>(entry.tensor)];
    parameter.state->gradient->tensor = unit.full_gradient.flat(entry.offset, entry.elements).reshape(parameter.shape);
    parameter.state->gradient->defined = false;
  }
}

// A gradient that received no contribution counts as zeros, and so does the padding between tensors.
void ShardedModel::complete_gradient(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  const UnitLayout& layout = plan_.units[static_cast<size_t>(index)];
  Stream& stream = backend_.compute_stream();
  int64_t end = 0;
  const auto fill_hole = [&](int64_t until) {
    if (!alone() && end < until) backend_.zero(stream, unit.full_gradient.flat(end, until - end));
  };
  for (const UnitLayout::Entry& entry : layout.entries) {
    fill_hole(entry.offset);
    GradientSlot& slot = *inventory().parameters()[static_cast<size_t>(entry.tensor)].state->gradient;
    if (!slot.defined) backend_.zero(stream, slot.tensor);
    slot.defined = true;
    end = entry.offset + entry.elements;
  }
  fill_hole(layout.elements);
}

// Units leave in the plan's static order, descending, whatever order they became ready in.
void ShardedModel::dispatch_ready() {
  while (next_reduce_ >= 0 && units_[static_cast<size_t>(next_reduce_)].ready) reduce(next_reduce_--);
}

void ShardedModel::reduce(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  unit.reduced = true;
  if (alone()) return;
  open_gradient(index);
  complete_gradient(index);
  gradient_stream_->wait(backend_.compute_stream().record());
  gradient_group_->reduce_scatter_v(*gradient_stream_, unit.full_gradient, plan_.units[static_cast<size_t>(index)].cuts, unit.slot_gradient,
                                    micro_batches_ > 0);
  outstanding_.push_back(gradient_stream_->record());
  unit.full_gradient = Tensor();
  for (int parameter : inventory().units()[static_cast<size_t>(index)].parameters) {
    GradientSlot& slot = *inventory().parameters()[static_cast<size_t>(parameter)].state->gradient;
    slot.tensor = Tensor();
    slot.defined = false;
  }
}

void ShardedModel::end_micro_batch() {
  for (Unit& unit : units_) unit.ready = true;  // also what this rank did not use
  dispatch_ready();
  ++micro_batches_;
  in_micro_batch_ = false;
  backward_depth_ = 0;
}

GradientReport ShardedModel::finish_gradients(std::span<const double> extras) {
  Stream& stream = backend_.compute_stream();
  if (alone())
    for (size_t unit = 0; unit < units_.size(); ++unit) complete_gradient(static_cast<int>(unit));
  while (!outstanding_.empty()) {
    wait(outstanding_.front());
    outstanding_.pop_front();
  }
  if (options_.inject)
    for (HeldPiece& held : held_)
      options_.inject(inventory().parameters()[static_cast<size_t>(held.piece.tensor)].name, held.piece.first, held.gradient);

  // One vector: a partial sum of squares per chunk, each from the one rank that holds it, then the extra values.
  const auto extra_count = static_cast<int64_t>(extras.size());
  if (!partials_.defined() || partials_.elements() != chunks_ + extra_count)
    partials_ =
        backend_.allocate(Shape{chunks_ + extra_count}, DType::float64, MemoryCategory::workspace, "partial sums of the gradient norm");
  backend_.zero(stream, partials_);
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].rule < 0) continue;
    const int64_t count = divide_up(held_[i].piece.count, plan_.cut_elements);
    backend_.optimizer().square_sums(stream, {held_[i].gradient, partials_.flat(norm_offsets_[i], count), plan_.cut_elements});
  }
  if (extra_count > 0) backend_.copy_from_host(stream, extras.data(), partials_.flat(chunks_, extra_count));
  if (!alone()) {
    gradient_stream_->wait(stream.record());
    gradient_group_->all_reduce(*gradient_stream_, partials_, ReduceOperation::sum);
    wait(gradient_stream_->record());
  }
  std::vector<double> sums(static_cast<size_t>(chunks_ + extra_count));
  backend_.copy_to_host(stream, partials_, sums.data());

  GradientReport report;
  double square = 0.0;
  for (size_t i = 0; i < name_order_.size(); ++i) {
    const int64_t last = i + 1 < name_order_.size() ? first_chunk_[i + 1] : chunks_;
    for (int64_t chunk = first_chunk_[i]; chunk < last; ++chunk) {
      const double partial = sums[static_cast<size_t>(chunk)];
      if (!std::isfinite(partial) && report.finite) {
        report.finite = false;
        report.first_non_finite = inventory().parameters()[static_cast<size_t>(name_order_[i])].name;
      }
      square += partial;
    }
  }
  report.norm = std::sqrt(square);
  report.sums.assign(sums.begin() + chunks_, sums.end());
  return report;
}

UpdateCounters ShardedModel::update(std::span<const StepValues> values) {
  Stream& stream = backend_.compute_stream();
  const auto count = [&] {
    UpdateCounters sum;
    for (const auto& rule : rules_.rules) {
      sum.newton_schulz_calls += rule->counters().newton_schulz_calls;
      sum.newton_schulz_guard_events += rule->counters().newton_schulz_guard_events;
    }
    return sum;
  };
  phase_ = &exposed_.update;
  const UpdateCounters before = count();
  for (size_t rule = 0; rule < rules_.rules.size(); ++rule) rules_.rules[rule]->prepare(backend_, stream, values[rule]);
  const int units = static_cast<int>(units_.size());
  size_t next = 0;  // held pieces are ordered by unit
  for (int first = 0; first < units; first += options_.window_units) {
    const int last = std::min(units, first + options_.window_units);
    // A rank that did not use a unit has not waited for its values yet; they must not change while they travel.
    for (int unit = first; unit < last; ++unit) wait(units_[static_cast<size_t>(unit)].published);
    std::vector<std::vector<UpdateItem>> items(rules_.rules.size());
    for (; next < held_.size() && held_[next].piece.unit < last; ++next) {
      HeldPiece& held = held_[next];
      if (held.rule < 0) continue;
      const ParameterDeclaration& parameter = inventory().parameters()[static_cast<size_t>(held.piece.tensor)];
      const bool whole = held.piece.count == parameter.shape.elements();
      const Shape shape = whole ? parameter.shape : Shape{held.piece.count};
      UpdateItem item{parameter.name, held.master.reshape(shape), held.gradient.reshape(shape), {}};
      for (const Tensor& state : held.state) item.state.push_back(state.reshape(shape));
      items[static_cast<size_t>(held.rule)].push_back(std::move(item));
    }
    for (size_t rule = 0; rule < items.size(); ++rule) {
      if (items[rule].empty()) continue;
      rules_.rules[rule]->local(backend_, stream, items[rule]);
      rules_.rules[rule]->global(backend_, stream, items[rule]);
    }
    for (int unit = first; unit < last; ++unit) publish(unit);
  }
  UpdateCounters done = count();
  done.newton_schulz_calls -= before.newton_schulz_calls;
  done.newton_schulz_guard_events -= before.newton_schulz_guard_events;
  return done;
}

void ShardedModel::publish(int index) {
  if (alone()) return;
  Unit& unit = units_[static_cast<size_t>(index)];
  parameter_stream_->wait(backend_.compute_stream().record());
  parameter_group_->all_gather_v(*parameter_stream_, unit.values, plan_.units[static_cast<size_t>(index)].cuts);
  unit.published = parameter_stream_->record();
}

void ShardedModel::publish_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) publish(static_cast<int>(unit));
}

void ShardedModel::wait_for_parameters() {
  for (const Unit& unit : units_) wait(unit.published);
}

void ShardedModel::skip_forward_pass() {}

void ShardedModel::wait(const Event& event, double& seconds) {
  if (!event.state()) return;
  const auto start = std::chrono::steady_clock::now();
  backend_.compute_stream().wait(event);
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Tensor ShardedModel::value(int parameter) const { return inventory().parameters()[static_cast<size_t>(parameter)].state->value; }

void ShardedModel::set_deadline(double seconds) {
  if (alone()) return;
  gradient_group_->set_deadline(seconds);
  parameter_group_->set_deadline(seconds);
}

int64_t ShardedModel::bytes_sent() const { return alone() ? 0 : gradient_group_->bytes_sent() + parameter_group_->bytes_sent(); }

namespace {

uint64_t hash_tensor(Backend& backend, const Tensor& tensor, uint64_t seed) {
  constexpr int64_t chunk = int64_t{1} << 22;
  std::vector<float> host(static_cast<size_t>(std::min(chunk, tensor.elements())));
  for (int64_t done = 0; done < tensor.elements(); done += chunk) {
    const int64_t count = std::min(chunk, tensor.elements() - done);
    backend.copy_to_host(backend.compute_stream(), tensor.flat(done, count), host.data());
    seed = hash_bytes(host.data(), count * 4, seed);
  }
  return seed;
}

}  // namespace

uint64_t ShardedModel::parameter_hash() {
  wait_for_parameters();
  uint64_t hash = 0;
  for (int parameter : name_order_) hash = hash_tensor(backend_, value(parameter), hash);
  return hash;
}

void ShardedModel::check_replicas() {
  if (alone()) return;
  wait_for_parameters();
  std::string mine = hash_to_hex(plan_.hash());  // a rank with another plan would go on reducing to the wrong owners
  for (const Unit& unit : units_) mine += hash_to_hex(hash_tensor(backend_, unit.values, 0));
  const std::vector<std::string> hashes = world_.all_gather_text(mine);
  for (size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r].substr(0, 16) != hashes[0].substr(0, 16))
      throw CommunicationError(text("the plan of rank ", r, " has changed since the start"));
  for (size_t unit = 0; unit < units_.size(); ++unit)
    for (size_t r = 1; r < hashes.size(); ++r)
      if (hashes[r].substr(16 + unit * 16, 16) != hashes[0].substr(16 + unit * 16, 16))
        throw CommunicationError(text("parameters differ between ranks: unit ", inventory().units()[unit].name, " on rank ", r, " (",
                                      world_.host(static_cast<int>(r)), ") is not what rank 0 (", world_.host(0),
                                      ") computes with; resume from the last checkpoint, and suspect that host's memory"));
}

}  // namespace dmuon
