// Design contract 13.3: end to end, ranks and micro-batches change results only by the order of sums. A small GPT-2 with
// a tied head is trained on the job's ranks and, by every rank for itself, alone; gradients of the first step and losses
// and parameters after 20 steps are compared. Ranks without samples and unused units are part of it.
#include <cmath>
#include <map>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "dmuon/core/trace.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/clipping.h"
#include "dmuon/optim/muon.h"
#include "dmuon/shard/sharded_model.h"
#include "dmuon/train/generator.h"
#include "models/gpt2.h"
#include "support/mpi_checks.h"
#include "support/test_ranks.h"
#include "train/batches.h"

using namespace dmuon;

namespace {

constexpr int64_t length = 17;  // no fewer rows than a product of training has: up to 16 go through the kernel of decoding

Gpt2Settings settings(bool tied, int64_t layers) {
  Gpt2Settings s;
  s.layers = layers;
  s.heads = 3;
  s.width = 36;
  s.context_length = length;
  s.vocabulary_size = 65;
  s.tied_head = tied;
  s.dropout = 0.1;
  return s;
}

HostTokenBatch batch(int64_t step, int64_t first, int64_t count) {
  HostTokenBatch b;
  b.sequences = count;
  b.length = length;
  const Random random(static_cast<uint64_t>(step), RandomStream::test);
  // Every token follows the one before by three: something to learn.
  for (int64_t s = first; s < first + count; ++s) {
    const auto start = static_cast<int64_t>(random.below(65, static_cast<uint64_t>(s)));
    for (int64_t t = 0; t < length; ++t) {
      b.tokens.push_back(static_cast<int32_t>((start + 3 * t) % 65));
      b.targets.push_back(static_cast<int32_t>((start + 3 * t + 3) % 65));
    }
  }
  b.valid_targets = count * length;
  return b;
}

struct Case {
  int64_t global_batch = 8;
  int64_t micro_batch = 8;
  bool tied = true;
  int64_t layers = 2;
  bool recompute = false;
  HostMode mode = HostMode::normal;
  bool host = false;  // on the CPU, whatever the test's device
  PlanStrategy strategy = PlanStrategy::greedy;
  bool announce = true;   // the number of micro-batches
  bool evaluate = false;  // after every step, on rank 0 only, and a generated text at the end
  ShardedModelOptions options = {};
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> gradients;  // of the first step, whole, where held
  std::map<std::string, int64_t> first;                  // first held element
  std::map<std::string, std::vector<double>> parameters;
  std::map<std::string, std::vector<double>> states;  // as held
  std::vector<double> evaluations;                    // on rank 0
  std::vector<int32_t> generated;                     // on rank 0
  MemoryStatistics memory;
};

Result train_small(Communicator& hosts, const Case& c, int steps) {
  const BackendOptions backend_options{.mode = c.mode, .threads = 1};
  const std::unique_ptr<Backend> backend =
      c.host ? make_cpu_backend(backend_options) : testing::make_test_backend_of(hosts, backend_options);
  testing::TestRanks ranks(*backend, hosts);
  Communicator& world = ranks.all();
  Gpt2 model(settings(c.tied, c.layers));
  model.set_recompute(c.recompute);
  RuleTable table;
  table.rules.push_back(make_muon(muon_options("keller")));
  table.rules.push_back(make_adamw({}));
  std::vector<PlanTensor> tensors;
  for (const ParameterDeclaration& parameter : model.inventory().parameters()) {
    const bool matrix = parameter.role == ParameterRole::matrix;
    table.rule_of.push_back(matrix ? 0 : 1);
    const bool whole = matrix && c.options.distribution != Distribution::gather;
    PlanTensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.unit = parameter.unit;
    tensor.whole = whole;
    tensor.rule = matrix ? 0 : 1;
    if (whole) tensor.cost = table.rules[0]->flops(parameter.shape);
    tensors.push_back(tensor);
  }
  PlanOptions plan_options;
  plan_options.slots = world.size();
  plan_options.strategy = c.strategy;
  plan_options.cut_elements = 128;
  plan_options.replicas = c.options.replicas;
  plan_options.window_units = 2;
  Plan plan = make_plan(tensors, static_cast<int>(model.inventory().units().size()), plan_options);
  Result result;
  ShardedModelOptions options = c.options;
  options.one_stream = c.mode == HostMode::deferred;
  options.inject = [&](const std::string& name, int64_t first, const Tensor& gradient) {
    if (result.gradients.count(name) > 0) return;
    result.gradients[name] = to_doubles(*backend, gradient);
    result.first[name] = first;
  };
  ShardedModel sharded(*backend, world, model, std::move(table), std::move(plan), options);
  sharded.initialize(5);
  // Deferred streams run only when somebody waits for them.
  const auto settle = [&] {
    sharded.wait_for_parameters();
    backend->compute_stream().synchronize();
  };
  for (int step = 1; step <= steps; ++step) {
    // The block of this rank, in micro-batches; the number of micro-batches is the same on every rank.
    const int64_t base = c.global_batch / world.size(), extra = c.global_batch % world.size();
    const int64_t begin = world.rank() * base + std::min<int64_t>(world.rank(), extra), mine = base + (world.rank() < extra ? 1 : 0);
    const int64_t largest = base + (extra > 0 ? 1 : 0);
    sharded.begin_step(c.announce ? (largest + c.micro_batch - 1) / c.micro_batch : 0);
    double loss = 0.0;
    for (int64_t done = 0; done < largest; done += c.micro_batch) {
      sharded.begin_micro_batch();
      const int64_t count = std::min(c.micro_batch, mine - std::min(mine, done));
      if (count > 0) {
        ExecutionContext context{*backend, backend->compute_stream()};
        context.dropout_seed = mix64(static_cast<uint64_t>(step));
        context.first_sequence = begin + done;
        StepClock clock;
        const double scale = 1.0 / static_cast<double>(c.global_batch * length);
        loss += to_doubles(*backend, train_micro_batch(model, context, batch(step, begin + done, count), scale, clock))[0];
      }
      sharded.end_micro_batch();
    }
    const double extras[] = {loss};
    const GradientReport report = sharded.finish_gradients(extras);
    result.losses.push_back(report.sums[0] / static_cast<double>(c.global_batch * length));
    result.norms.push_back(report.norm);
    const StepValues values{step, 0.01, clip_coefficient(report.norm, 1.0)};
    const StepValues all[] = {values, {step, 0.001, values.gradient_scale}};
    sharded.update(all);
    for (int64_t pass = 0; c.evaluate && pass < 2; ++pass) {
      ExecutionContext context{*backend, backend->compute_stream()};
      if (world.rank() == 0)
        result.evaluations.push_back(evaluate_batch(model, context, batch(1000 + pass, 0, 3)));
      else
        sharded.skip_forward_pass();
      settle();
    }
  }
  if (c.evaluate) {
    GenerationOptions generation;
    generation.tokens = 15;  // the context is read again once
    if (world.rank() == 0)
      result.generated = generate(*backend, model, std::vector<int32_t>{1, 4, 7}, generation);
    else
      for (int64_t i = 0; i < generation.tokens; ++i) sharded.skip_forward_pass();
    settle();
  }
  result.memory = backend->allocator().statistics();
  sharded.wait_for_parameters();
  sharded.check_replicas();
  sharded.for_each_unit([&](int unit) {
    for (int index : model.inventory().units()[static_cast<size_t>(unit)].parameters)
      result.parameters[model.inventory().parameters()[static_cast<size_t>(index)].name] = to_doubles(*backend, sharded.value(index));
  });
  for (const HeldPiece& held : sharded.held())
    for (size_t s = 0; s < held.state.size(); ++s)
      result.states[text(held.piece.tensor, '#', s, '@', held.piece.first)] = to_doubles(*backend, held.state[s]);
  return result;
}

// ||a - b|| / ||b||, absolute where the true value is zero (key biases).
double distance(const std::vector<double>& a, const double* b, size_t count) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < count; ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm < 1e-12 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

void compare(testing::MpiChecks& checks, const Result& job, const Result& alone, double loss_tolerance, double parameter_tolerance) {
  for (const auto& [name, gradient] : job.gradients) {
    const double d = distance(gradient, alone.gradients.at(name).data() + job.first.at(name), gradient.size());
    checks.check(d < 1e-6, text("gradient of ", name, " is ", d, " away"));
  }
  for (size_t step = 0; step < job.losses.size(); ++step) {
    checks.check(std::fabs(job.losses[step] - alone.losses[step]) < loss_tolerance * alone.losses[step],
                 text("loss of step ", step + 1, ": ", job.losses[step], " against ", alone.losses[step]));
    checks.check(std::fabs(job.norms[step] - alone.norms[step]) < loss_tolerance * 10 * alone.norms[step],
                 text("gradient norm of step ", step + 1));
  }
  for (const auto& [name, values] : job.parameters) {
    // The true gradient of a key bias is zero: Adam turns rounding noise into steps of full size, so only their number
    // bounds the difference.
    if (name.find("key.bias") != std::string::npos) {
      for (size_t i = 0; i < values.size(); ++i)
        checks.check(std::fabs(values[i] - alone.parameters.at(name)[i]) <= 2.0 * 0.001 * static_cast<double>(job.losses.size()),
                     text("parameter ", name));
      continue;
    }
    const double d = distance(values, alone.parameters.at(name).data(), values.size());
    checks.check(d < parameter_tolerance, text("parameter ", name, " is ", d, " away"));
  }
}

void require_equal(testing::MpiChecks& checks, const Result& a, const Result& b, bool states) {
  checks.check(a.losses == b.losses, "losses differ");
  checks.check(a.norms == b.norms, "gradient norms differ");
  checks.check(a.evaluations == b.evaluations, "evaluations differ");
  checks.check(a.generated == b.generated, "generated texts differ");
  for (const auto& [name, values] : a.parameters) checks.check(values == b.parameters.at(name), text(name, " differs"));
  for (const auto& [name, values] : a.states)
    if (states) checks.check(values == b.states.at(name), text("state ", name, " differs"));
}

// On one grid everything that only moves work or memory leaves every bit as it is.
void check_grid(testing::MpiChecks& checks, Communicator& world, int replicas) {
  Case base{.evaluate = true};
  base.options.replicas = replicas;
  Result plain, alone;
  checks.section(text(replicas, " replicas against one rank"), [&] {
    plain = train_small(world, base, 4);
    alone = train_small(*make_self_communicator(), {.evaluate = true}, 4);
    compare(checks, plain, alone, 1e-5, 1e-4);
    for (size_t i = 0; i < plain.evaluations.size(); ++i)
      checks.check(std::fabs(plain.evaluations[i] - alone.evaluations[i]) < 1e-4 * alone.evaluations[i], text("evaluation ", i));
  });
  const auto equal = [&](const std::string& name, bool states, auto change) {
    checks.section(text(replicas, " replicas, ", name), [&] {
      Case c = base;
      change(c);
      require_equal(checks, train_small(world, c, 4), plain, states);
    });
  };
  for (int stage : {1, 3}) {
    equal(text("stage ", stage), true, [&](Case& c) { c.options.stage = stage; });
    equal(text("stage ", stage, ", recomputed, nothing overlaps"), true, [&](Case& c) {
      c.options.stage = stage;
      c.options.overlap = false;
      c.recompute = true;
    });
    equal(text("stage ", stage, ", guarded"), true, [&](Case& c) {
      c.options.stage = stage;
      c.mode = HostMode::guarded;
    });
    equal(text("stage ", stage, ", deferred"), true, [&](Case& c) {
      c.options.stage = stage;
      c.mode = HostMode::deferred;
    });
  }
  equal("mixed stages", true, [](Case& c) {
    c.options.unit_stages = {3, 2, 1, 3, 2};
    c.options.outstanding_reduces = 0;
  });
  equal("stage 3 of the blocks only", true, [](Case& c) { c.options.unit_stages = {2, 2, 3, 3, 2}; });
  for (int look_ahead : {0, 1, 3, 9})
    equal(text("look-ahead ", look_ahead), true, [&](Case& c) {
      c.options.stage = 3;
      c.options.look_ahead = look_ahead;
    });
  equal("every step reduced apart", true, [](Case& c) {
    c.options.stage = 1;
    c.announce = false;
  });
  equal("round robin", false, [](Case& c) { c.strategy = PlanStrategy::round_robin; });
  equal("replicated", false, [](Case& c) { c.options.distribution = Distribution::replicated; });
  equal("gather", false, [](Case& c) { c.options.distribution = Distribution::gather; });
  // bfloat16 on the wire: all ranks compute with the same values, in every stage.
  Result narrow;
  for (int stage = 1; stage <= 3; ++stage)
    checks.section(text(replicas, " replicas, bfloat16 wires, stage ", stage), [&] {
      Case c = base;
      c.options.stage = stage;
      c.options.compute_dtype = c.options.gradient_dtype = DType::bfloat16;
      c.mode = stage == 3 ? HostMode::deferred : HostMode::guarded;
      const Result result = train_small(world, c, 4);
      if (stage == 1) narrow = result;
      require_equal(checks, result, narrow, true);
      for (size_t step = 0; step < result.losses.size(); ++step)
        checks.check(std::fabs(result.losses[step] - plain.losses[step]) < 0.01 * plain.losses[step], text("loss of step ", step + 1));
    });
  // Several micro-batches: sums in another order.
  for (int stage = 1; stage <= 3; ++stage)
    checks.section(text(replicas, " replicas, micro-batches of 1, stage ", stage), [&] {
      Case c = base;
      c.micro_batch = 1;
      c.options.stage = stage;
      compare(checks, train_small(world, c, 4), alone, 1e-5, 1e-4);
    });
}

// What a rank may hold at stage 3: its share and a pool that grows with the look-ahead, never the model.
void check_memory(testing::MpiChecks& checks, Communicator& world) {
  checks.section("no rank holds the model at stage 3", [&] {
    Case c{.tied = false, .layers = 12};
    c.options.stage = 3;
    c.options.look_ahead = 1;
    const Result result = train_small(world, c, 2);
    int64_t model = 0;
    for (const auto& [name, values] : result.parameters) model += static_cast<int64_t>(values.size()) * 4;
    const int64_t peak = result.memory[MemoryCategory::parameters].peak;
    const int64_t unit = model / 12;  // no unit is larger
    checks.check(peak < model / world.size() + 3 * unit, text("parameters take ", peak, " of ", model, " bytes"));
  });
}

void check_trace(testing::MpiChecks& checks, Communicator& world) {
  checks.section("a trace shows compute, collectives and their bytes", [&] {
    Trace trace;
    Case c;
    c.options.stage = 3;
    c.options.trace = &trace;
    train_small(world, c, 2);
    std::map<std::string, int> spans;
    for (const Trace::Span& span : trace.spans()) {
      checks.check(!span.unfinished, text(span.track, ' ', span.name, " has not ended"));
      ++spans[text(span.track, ": ", span.name)];
    }
    checks.check(spans["compute: forward blocks.1"] == 2, "forward spans");
    checks.check(spans["compute: backward head"] == 2, "backward spans");
    checks.check(spans["parameters in the node: gather blocks.0"] >= 2, "gather spans");
    checks.check(spans["gradients in the node: reduce blocks.0"] == 2, "reduce spans");
  });
}

// On devices: stages and grids against the run of one device; its losses are the CPU's.
void check_devices(testing::MpiChecks& checks, Communicator& all, Communicator& self) {
  const Result alone = train_small(self, {}, 4), on_cpu = train_small(self, {.host = true}, 4);
  for (size_t step = 0; step < alone.losses.size(); ++step)
    checks.check(std::abs(alone.losses[step] - on_cpu.losses[step]) < 1e-4 * on_cpu.losses[step],
                 text("loss ", alone.losses[step], " on a device, ", on_cpu.losses[step], " on the CPU"));
  for (int replicas = 1; replicas <= all.size(); ++replicas) {
    if (all.size() % replicas != 0) continue;
    const auto nodes = all.divide_into_nodes(replicas, "virtual nodes");
    for (int stage = 1; stage <= 3; ++stage) {
      const bool grid = replicas > 1 && replicas < all.size();
      if (grid && stage == 2) continue;                                                     // time
      if (testing::test_device_is_guarded() && stage != (replicas == 1 ? 3 : 1)) continue;  // time
      checks.section(text("on devices, ", replicas, " replicas, stage ", stage), [&] {
        Case c{.micro_batch = 2 * (1 + stage % 2)};
        c.options.replicas = replicas;
        c.options.stage = stage;
        compare(checks, train_small(*nodes, c, 4), alone, 1e-4, 1e-4);
      });
    }
  }
  if (testing::test_device_is_guarded()) return;
  checks.section("on devices, the same bits without overlap", [&] {
    Case c{};
    c.options.stage = 3;
    const Result plain = train_small(all, c, 2);
    c.options.overlap = false;
    const Result waiting = train_small(all, c, 2);
    for (const auto& [name, values] : plain.parameters) checks.check(values == waiting.parameters.at(name), name);
    checks.check(plain.losses == waiting.losses, "losses");
  });
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  const auto self = make_self_communicator();
  if (testing::test_device_is_cuda()) {
    check_devices(checks, all, *self);
    const int code = checks.finish();
    world.finish();
    return code;
  }
  for (bool tied : {true, false}) {
    const Result alone = train_small(*self, {.tied = tied}, 20);
    checks.section(tied ? "20 steps, tied head" : "20 steps, untied head",
                   [&] { compare(checks, train_small(all, {.tied = tied}, 20), alone, 1e-4, 1e-4); });
    checks.section("the loss goes down", [&] {
      checks.check(alone.losses.back() < alone.losses.front() - 0.05, text(alone.losses.front(), " to ", alone.losses.back()));
    });
    for (int64_t micro : {int64_t{4}, int64_t{1}, int64_t{3}})
      checks.section(text("micro-batches of ", micro), [&] {
        compare(checks, train_small(all, {.micro_batch = micro, .tied = tied}, 3), train_small(*self, {.tied = tied}, 3), 1e-5, 1e-4);
      });
  }
  // Three samples on up to four ranks: some have none and still enter every collective.
  checks.section("ranks without samples", [&] {
    compare(checks, train_small(all, {.global_batch = 3, .micro_batch = 1}, 3),
            train_small(*self, {.global_batch = 3, .micro_batch = 3}, 3), 1e-5, 1e-4);
  });
  checks.section("recomputation gives the same bits", [&] {
    const Result plain = train_small(all, {}, 3), again = train_small(all, {.recompute = true}, 3);
    for (const auto& [name, values] : plain.parameters) checks.check(values == again.parameters.at(name), name);
    checks.check(plain.losses == again.losses, "losses");
  });
  checks.section("the same run twice gives the same bits", [&] {
    const Result a = train_small(all, {.micro_batch = 2}, 5), b = train_small(all, {.micro_batch = 2}, 5);
    for (const auto& [name, values] : a.parameters) checks.check(values == b.parameters.at(name), name);
  });
  // Test doubles: a missing wait or a stray access would change values or crash.
  for (HostMode mode : {HostMode::guarded, HostMode::deferred})
    checks.section(mode == HostMode::guarded ? "guarded" : "deferred", [&] {
      const Result plain = train_small(all, {}, 2), doubled = train_small(all, {.mode = mode}, 2);
      for (const auto& [name, values] : plain.parameters) checks.check(values == doubled.parameters.at(name), name);
    });
  for (int replicas = 1; replicas <= all.size(); ++replicas) {
    if (all.size() % replicas != 0) continue;
    const auto nodes = all.divide_into_nodes(replicas, "virtual nodes");  // no memory is shared between them
    check_grid(checks, *nodes, replicas);
  }
  if (all.size() > 1) {
    check_memory(checks, all);
    check_trace(checks, all);
  }
  const int code = checks.finish();
  world.finish();
  return code;
}
