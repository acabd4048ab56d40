#include "dmuon/shard/sharded_model.h"

#include <algorithm>

#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"
#include "dmuon/core/trace.h"
#include "shard/checks.h"
#include "shard/gradient_norm.h"
#include "shard/pass_cursor.h"
#include "shard/updater.h"

namespace dmuon {

struct ShardedModel::Parts {
  Parts(Backend& backend, Communicator& world, Model& model, RuleTable rules, JobPlans plans, ShardedModelOptions options)
      : job(backend, world, model, std::move(rules), std::move(plans), std::move(options)),
        order(agreed_order(job)),
        store(job),
        publisher(job, store, order),
        reducer(job, store, order),
        norm(job, store),
        updater(job, store, reducer, publisher, order),
        cursor(job, order, publisher, reducer),
        spans(static_cast<size_t>(job.units()), 0) {}

  static UseOrder agreed_order(ShardJob& job) {
    UseOrder order = make_use_order(job.model.forward_order(), job.model.backward_order(), job.units());
    require_equal_jobs(job, order);
    return order;
  }

  void begin_span(const char* what, int unit) {
    if (job.options.trace)
      spans[static_cast<size_t>(unit)] = job.options.trace->begin("compute", what, text(what, ' ', job.unit_name(unit)));
  }
  void end_span(int unit) {
    if (job.options.trace) job.options.trace->end(spans[static_cast<size_t>(unit)]);
  }

  ShardJob job;
  UseOrder order;
  UnitStore store;
  Publisher publisher;
  Reducer reducer;
  GradientNorm norm;
  Updater updater;
  PassCursor cursor;
  std::vector<int64_t> spans;  // open trace span of each unit
};

ShardedModel::ShardedModel(Backend& backend, Communicator& world, Model& model, RuleTable rules, JobPlans plans,
                           ShardedModelOptions options)
    : parts_(std::make_unique<Parts>(backend, world, model, std::move(rules), std::move(plans), std::move(options))) {
  model.set_unit_listener(this);
}

ShardedModel::~ShardedModel() { parts_->job.model.set_unit_listener(nullptr); }

void ShardedModel::initialize(uint64_t seed) {
  const int threads = parts_->job.backend.information().threads;
  fill_masters([&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
    fill_initial(parameter, seed, first, count, out, threads);
  });
  publish_all();
}

void ShardedModel::fill_masters(const InitialValues& values) {
  constexpr int64_t chunk = int64_t{1} << 22;
  Backend& backend = parts_->job.backend;
  std::vector<float> host;
  if (backend.shape_only()) return;  // a model of any size is counted in no time
  for (const HeldPiece& held : held()) {
    const ParameterDeclaration& parameter = parts_->job.parameter(held.piece.tensor);
    for (int64_t done = 0; done < held.piece.count; done += chunk) {
      const int64_t count = std::min(chunk, held.piece.count - done);
      if (std::ssize(host) < count) host.resize(static_cast<size_t>(count));  // never smaller: growing again would clear it again
      values(parameter, held.piece.first + done, count, host.data());
      backend.copy_from_host(backend.compute_stream(), host.data(), held.master.flat(done, count));
    }
  }
}

void ShardedModel::begin_step(int64_t micro_batches) {
  parts_->cursor.end();  // a forward pass that ended early
  parts_->job.phase = &parts_->job.exposed.forward;
  parts_->reducer.begin_step(micro_batches);
}

void ShardedModel::begin_micro_batch() {
  parts_->job.phase = &parts_->job.exposed.forward;
  parts_->reducer.begin_micro_batch();
  parts_->cursor.begin(true);
}

void ShardedModel::end_micro_batch() {
  parts_->job.phase = &parts_->job.exposed.backward;
  parts_->cursor.end();
  parts_->reducer.end_micro_batch();
}

void ShardedModel::skip_forward_pass() {
  parts_->cursor.end();
  parts_->job.phase = &parts_->job.exposed.forward;
  parts_->cursor.begin(false);
  parts_->cursor.end();
}

GradientReport ShardedModel::finish_gradients(std::span<const double> extras) {
  ShardJob& job = parts_->job;
  job.phase = &job.exposed.update;  // as the step's clock counts it: the backward pass is over
  parts_->reducer.finish();
  if (job.options.inject) {
    if (job.replicated())
      for (const UpdateTarget& target : parts_->store.targets())
        job.options.inject(job.parameter(target.tensor).name, target.first, target.gradient);
    else
      for (const HeldPiece& piece : held()) job.options.inject(job.parameter(piece.piece.tensor).name, piece.piece.first, piece.gradient);
  }
  return parts_->norm.agree(extras);
}

UpdateCounters ShardedModel::update(std::span<const StepValues> values, bool observe_votes) {
  parts_->job.phase = &parts_->job.exposed.update;
  return parts_->updater.update(values, observe_votes);
}

void ShardedModel::publish_all() {
  parts_->cursor.end();
  parts_->job.phase = &parts_->job.exposed.update;
  parts_->publisher.wait_all();
  parts_->store.complete_copies();
  parts_->store.share_buffers();
  parts_->publisher.begin_publish();
  for (int unit : parts_->order.first_uses(parts_->job.units())) {
    parts_->store.copy_master_to_slot(unit);
    parts_->publisher.publish(unit);
  }
  parts_->publisher.gather_published();
}

void ShardedModel::wait_for_parameters() { parts_->publisher.wait_all(); }

void ShardedModel::for_each_unit(const std::function<void(int unit)>& visit) {
  PassCursor& cursor = parts_->cursor;
  cursor.end();
  cursor.begin(false);
  std::vector<bool> seen(static_cast<size_t>(parts_->job.units()), false);
  for (int position = 0; position < parts_->order.forward_uses; ++position) {
    const int unit = parts_->order.units[static_cast<size_t>(position)];
    cursor.enter_forward(unit);
    if (!seen[static_cast<size_t>(unit)]) visit(unit);
    seen[static_cast<size_t>(unit)] = true;
    cursor.leave(unit);
  }
  cursor.end();
}

// By name, so that it does not depend on where a tensor lies.
uint64_t ShardedModel::parameter_hash() {
  std::vector<uint64_t> hashes(inventory().parameters().size(), 0);
  for_each_unit([&](int unit) {
    for (int parameter : inventory().units()[static_cast<size_t>(unit)].parameters)
      hashes[static_cast<size_t>(parameter)] = hash_tensor(parts_->job.backend, value(parameter), 0);
  });
  uint64_t hash = 0;
  for (int parameter : parts_->norm.name_order()) hash = hash_bytes(&hashes[static_cast<size_t>(parameter)], sizeof hash, hash);
  return hash;
}

void ShardedModel::check_replicas() {
  ShardJob& job = parts_->job;
  if (job.alone()) return;
  wait_for_parameters();
  std::vector<uint64_t> hashes(static_cast<size_t>(job.units()), 0);
  for_each_unit([&](int unit) { hashes[static_cast<size_t>(unit)] = hash_tensor(job.backend, parts_->publisher.values(unit), 0); });
  // The comparison blocks this thread: nothing may be left that only it would run.
  wait_for_parameters();
  job.backend.compute_stream().synchronize();
  std::vector<uint64_t> masters;  // where their values are not all there is of them
  if (job.options.compute_dtype != DType::float32 && !job.vote_plan.units.empty())
    for (int unit = 0; unit < job.units(); ++unit) {
      masters.push_back(0);
      for (const Region& region : job.regions(unit))
        if (region.vote) masters.back() = hash_tensor(job.backend, parts_->store.memory(region).master, 0);
    }
  require_equal_values(job, hashes, masters);
}

std::span<HeldPiece> ShardedModel::held() { return parts_->store.held(); }
const Plan& ShardedModel::plan() const { return parts_->job.plan; }
const Plan& ShardedModel::vote_plan() const { return parts_->job.vote_plan; }
const RuleTable& ShardedModel::rules() const { return parts_->job.rules; }
const Inventory& ShardedModel::inventory() const { return parts_->job.inventory(); }
const RankGrid& ShardedModel::grid() const { return parts_->job.grid; }
const ShardedModelOptions& ShardedModel::options() const { return parts_->job.options; }
const ExposedSeconds& ShardedModel::exposed() const {
  parts_->job.count_timed_waits();
  return parts_->job.exposed;
}

Tensor ShardedModel::value(int parameter) const { return parts_->job.parameter(parameter).state->value; }

void ShardedModel::set_deadline(double seconds) { parts_->job.set_deadline(seconds); }
TrafficBytes ShardedModel::traffic() const {
  const TrafficBytes all = parts_->job.traffic(), observing = parts_->updater.votes().observing();
  return {all.inside - observing.inside, all.between - observing.between};
}
TrafficBytes ShardedModel::vote_traffic() const {
  const TrafficBytes all = parts_->job.vote_traffic(), observing = parts_->updater.votes().observing();
  return {all.inside - observing.inside, all.between - observing.between};
}
const VoteReport& ShardedModel::vote_report() const { return parts_->updater.vote_report(); }

void ShardedModel::enter_forward(int unit) {
  PassCursor& cursor = parts_->cursor;
  parts_->job.phase = &parts_->job.exposed.forward;
  if (!cursor.training() && cursor.find_forward(unit) < 0) {
    cursor.end();  // a pass of its own, outside steps
    cursor.begin(false);
  }
  cursor.enter_forward(unit);
  parts_->begin_span("forward", unit);
}

void ShardedModel::leave_forward(int unit) {
  parts_->end_span(unit);
  parts_->cursor.leave(unit);
  if (!parts_->cursor.training() && parts_->cursor.done()) parts_->cursor.end();
}

void ShardedModel::enter_backward(int unit) {
  parts_->job.phase = &parts_->job.exposed.backward;
  parts_->cursor.enter_backward(unit);
  parts_->reducer.enter_backward(unit);
  parts_->begin_span("backward", unit);
}

void ShardedModel::leave_backward(int unit) {
  parts_->end_span(unit);
  parts_->cursor.leave(unit);
  parts_->reducer.leave_backward(unit);
}

}  // namespace dmuon
