#include "shard/shard_job.h"

#include <chrono>

#include "dmuon/core/text.h"
#include "dmuon/core/trace.h"
#include "shard/vote_checks.h"

namespace dmuon {
namespace {

void check_options(const ShardJob& job) {
  const ShardedModelOptions& options = job.options;
  const auto units = job.plan.units.size();
  if (job.plan.slots != job.world.size())
    throw CommunicationError(text("the plan has ", job.plan.slots, " slots, the job ", job.world.size(), " ranks"));
  if (job.plan.replicas != options.replicas)
    throw ConfigError(text("the plan is for ", job.plan.replicas, " replicas, the job has ", options.replicas));
  if (units != job.inventory().units().size())
    throw ConfigError(text("the plan has ", units, " units, the model ", job.inventory().units().size()));
  if (!options.unit_stages.empty() && options.unit_stages.size() != units)
    throw ConfigError(text("distribution.unit_stages: ", options.unit_stages.size(), " stages for ", units, " units"));
  std::vector<int> stages = options.unit_stages;
  stages.push_back(options.stage);
  for (int stage : stages)
    if (stage < 1 || stage > 3) throw ConfigError(text("distribution.stage: ", stage, " is not one of 1, 2, 3"));
  for (DType dtype : {options.compute_dtype, options.gradient_dtype})
    if (dtype != DType::float32 && dtype != DType::bfloat16)
      throw ConfigError(text("distribution: values and gradients travel as float32 or bfloat16, not as ", name_of(dtype)));
  if (options.look_ahead < 0) throw ConfigError(text("distribution.look_ahead must not be negative, found ", options.look_ahead));
  if (options.vote_ballot_bytes < 0) throw ConfigError(text("vote ballots of ", options.vote_ballot_bytes, " bytes must not be negative"));
  if (options.outstanding_reduces < 0) throw ConfigError(text("outstanding reduces must not be negative"));
  for (size_t i = 0; i < job.inventory().parameters().size(); ++i)
    if (job.is_buffer(static_cast<int>(i)) && job.rules.rule_of[i] >= 0)
      throw ConfigError(text("parameter ", job.parameter(static_cast<int>(i)).name, " is a buffer and cannot have an update rule"));
  if (options.distribution == Distribution::gather && options.compute_dtype != DType::float32)
    throw ConfigError("distribution.method gather updates in the full values: it needs distribution.compute_dtype float32");
  if (options.distribution == Distribution::gather)
    for (int unit = 0; unit < job.units(); ++unit)
      if (job.stage(unit) == 3)
        throw ConfigError(text("distribution.method gather updates in the full values: unit ", job.unit_name(unit),
                               " cannot be of stage 3; choose 1 or 2"));
}

Level make_level(ShardJob& job, int color, int key, int size, const char* name) {
  Level level;
  level.name = name;
  if (size == 1) return level;
  level.group = job.world.split(color, key, name);
  for (const Level* other : std::as_const(job).levels())
    if (job.options.one_stream && other->stream) level.stream = other->stream;
  if (!level.stream) level.stream = job.backend.make_communication_stream(name);
  return level;
}

}  // namespace

ShardJob::ShardJob(Backend& backend_in, Communicator& world_in, Model& model_in, RuleTable rules_in, JobPlans plans,
                   ShardedModelOptions options_in)
    : backend(backend_in),
      world(world_in),
      model(model_in),
      rules(std::move(rules_in)),
      plan(std::move(plans.mean)),
      vote_plan(std::move(plans.vote)),
      options(std::move(options_in)),
      grid(make_rank_grid(world_in.size(), options.replicas)),
      shard(grid.shard_of(world_in.rank())),
      replica(grid.replica_of(world_in.rank())),
      slot(grid.slot_of(world_in.rank())),
      phase(&exposed.update),
      clock(dynamic_cast<DeviceClock*>(&backend_in.compute_stream())) {
  check_options(*this);
  check_votes(*this);
  buffers = make_unit_buffers(plan, vote_plan, grid, world.rank(), replicated());
  gradients.shard = make_level(*this, replica, shard, grid.shards, "gradients in the node");
  gradients.column = make_level(*this, shard, replica, grid.replicas, "gradients between nodes");
  parameters.shard = make_level(*this, replica, shard, grid.shards, "parameters in the node");
  parameters.column = make_level(*this, shard, replica, grid.replicas, "parameters between nodes");
  if (!vote_plan.units.empty()) {
    votes.shard = make_level(*this, replica, shard, grid.shards, "votes in the node");
    votes.column = make_level(*this, shard, replica, grid.replicas, "votes between nodes");
  }
  if (gradients.shard && gradients.column) agreement = world.split(0, world.rank(), "gradient norm");
}

ShardJob::~ShardJob() {
  // Streams first: they finish work that uses the groups. Columns wait for shards and the other way round, so an error in
  // one is thrown by the other's wait and ends there.
  for (Level* level : levels()) level->stream.reset();
}

std::vector<Level*> ShardJob::levels() {
  return {&gradients.shard, &gradients.column, &parameters.shard, &parameters.column, &votes.shard, &votes.column};
}

std::vector<const Level*> ShardJob::levels() const {
  return {&gradients.shard, &gradients.column, &parameters.shard, &parameters.column, &votes.shard, &votes.column};
}

bool ShardJob::votes_on(int index) const {
  const int rule = rule_of(index);
  return rule >= 0 && rules.rules[static_cast<size_t>(rule)]->agreement() == Agreement::vote;
}

bool ShardJob::whole(int index) const {
  const int rule = rule_of(index);
  return rule >= 0 && rules.rules[static_cast<size_t>(rule)]->cutting() == Cutting::whole;
}

int ShardJob::stage(int unit) const {
  if (replicated()) return 1;
  const int asked = options.unit_stages.empty() ? options.stage : options.unit_stages[static_cast<size_t>(unit)];
  return asked == 3 && grid.shards == 1 ? 2 : asked;  // a node of one rank holds the whole node's segments
}

Tensor ShardJob::allocate_shared(Levels& levels, int64_t elements, DType dtype, MemoryCategory category, const std::string& name) {
  Level& level = levels.shard ? levels.shard : levels.column;
  if (!level) return allocate(elements, dtype, category, name);
  return level.group->allocate(backend, Shape{elements}, dtype, category, name);
}

Tensor ShardJob::allocate(int64_t elements, DType dtype, MemoryCategory category, const std::string& name) {
  return backend.allocate(Shape{elements}, dtype, category, name);
}

void ShardJob::set_deadline(double seconds) {
  for (Level* level : levels())
    if (*level) level->group->set_deadline(seconds);
  if (agreement) agreement->set_deadline(seconds);
  if (vote_transport) vote_transport->set_deadline(seconds);
}

namespace {

void add(TrafficBytes& sum, const TrafficBytes& bytes) {
  sum.inside += bytes.inside;
  sum.between += bytes.between;
}

void add_traffic(TrafficBytes& sum, const Level& level) {
  if (level) add(sum, level.group->traffic());
}

}  // namespace

TrafficBytes ShardJob::traffic() const {
  TrafficBytes sum;
  for (const Level* level : {&gradients.shard, &gradients.column, &parameters.shard, &parameters.column}) add_traffic(sum, *level);
  if (agreement) add(sum, agreement->traffic());
  add(sum, vote_traffic());
  return sum;
}

TrafficBytes ShardJob::vote_traffic() const {
  TrafficBytes sum;
  add_traffic(sum, votes.shard);
  add_traffic(sum, votes.column);
  // That transport has groups of its own.
  if (vote_transport && vote_transport->kind() == VoteTransportKind::hierarchical) add(sum, vote_transport->traffic());
  return sum;
}

Event ShardJob::start(Level& level, const Event& ready, const std::string& operation, int unit, int64_t bytes,
                      const std::function<void(Communicator&, Stream&)>& submit) {
  level.stream->wait(ready);
  const std::string name = unit < 0 ? operation : text(operation, ' ', unit_name(unit));
  // Host work keeps a device's stream waiting, so there it is for traces only; a failure names its operation anyway.
  Trace* trace = options.trace;
  const bool marked = clock == nullptr || trace != nullptr;
  auto span = std::make_shared<int64_t>(0);
  if (marked)
    level.stream->submit([trace, span, bytes, running = level.running, track = level.name, name] {
      running->set(name);
      if (trace != nullptr) *span = trace->begin(track, "communication", name, bytes);
    });
  level.group->describe_next(unit < 0 ? operation : text(operation, " of ", unit_name(unit)));
  submit(*level.group, *level.stream);
  level.group->describe_next("");  // not that of another group
  if (marked)
    level.stream->submit([trace, span, running = level.running] {
      running->set("");
      if (trace != nullptr) trace->end(*span);
    });
  const Event done = level.stream->record();
  if (!options.overlap) wait(done, operation.c_str(), unit);
  return done;
}

void ShardJob::wait(const Event& event, const char* what, int unit) {
  if (!event.state()) return;
  if (clock != nullptr) return wait_on_device(event, what, unit);
  const auto start = std::chrono::steady_clock::now();
  try {
    backend.compute_stream().wait(event);
  } catch (const CommunicationError& error) {
    std::string under_way;
    for (const Level* level : std::as_const(*this).levels())
      if (const std::string running = level->running->get(); !running.empty())
        under_way += text(under_way.empty() ? "" : ", ", '"', running, "\" of ", level->name);
    throw CommunicationError(text(error.what(), "; under way: ", under_way));
  }
  const auto end = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(end - start).count();
  *phase += seconds;
  // Nobody wants to see waits for what has already happened.
  if (options.trace != nullptr && seconds > 2e-6)
    options.trace->record("compute", "wait", unit < 0 ? text("wait for ", what) : text("wait for ", what, ' ', unit_name(unit)), start,
                          end);
}

void ShardJob::wait_on_device(const Event& event, const char* what, int unit) {
  Stream& compute = backend.compute_stream();
  if (event.done()) return compute.wait(event);  // for the order of streams; nothing to count
  TimedWait timed{clock->record_time(), {}, phase};
  Trace* trace = options.trace;
  auto span = std::make_shared<int64_t>(0);
  if (trace != nullptr)
    compute.submit([trace, span, name = unit < 0 ? text("wait for ", what) : text("wait for ", what, ' ', unit_name(unit))] {
      *span = trace->begin("compute", "wait", name, 0);
    });
  compute.wait(event);
  if (trace != nullptr) compute.submit([trace, span] { trace->end(*span); });
  timed.after = clock->record_time();
  timed_waits.push_back(std::move(timed));
  count_timed_waits();  // there are never more than the device has queued
}

void ShardJob::count_timed_waits() {
  for (; !timed_waits.empty() && timed_waits.front().after.done(); timed_waits.pop_front())
    *timed_waits.front().phase += clock->seconds_between(timed_waits.front().before, timed_waits.front().after);
}

void ShardJob::complete(const Tensor& data, const Region& region) {
  Event ready = backend.compute_stream().record();
  if (region.between_nodes())
    ready = start(parameters.column, ready, "gather", region.unit, data.bytes(), [&](Communicator& group, Stream& stream) {
      group.all_gather_v(stream, data.flat(region.coarse.begin, region.coarse.count()), region.column_cuts);
    });
  if (region.inside_node())
    ready = start(parameters.shard, ready, "gather", region.unit, data.bytes(),
                  [&](Communicator& group, Stream& stream) { group.all_gather_v(stream, data, region.shard_cuts); });
  wait(ready, "gather", region.unit);
}

void ShardJob::add_over_ranks(const Tensor& data, const char* what, int unit) {
  if (alone()) return;
  Level& level = gradients.shard ? gradients.shard : gradients.column;
  Communicator& group = agreement ? *agreement : *level.group;
  const Event done = start(level, backend.compute_stream().record(), what, unit, data.bytes(), [&](Communicator&, Stream& stream) {
    group.describe_next(unit < 0 ? what : text(what, " of ", unit_name(unit)));
    group.all_reduce(stream, data, ReduceOperation::sum);
  });
  wait(done, what, unit);
}

}  // namespace dmuon
