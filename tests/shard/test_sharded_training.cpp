// Design contract 13.3: end to end, ranks and micro-batches change results only by the order of sums. A small GPT-2 with
// a tied head is trained on the job's ranks and, by every rank for itself, alone; gradients of the first step and losses
// and parameters after 20 steps are compared. Ranks without samples and unused units are part of it.
#include <cmath>
#include <map>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/clipping.h"
#include "dmuon/optim/muon.h"
#include "dmuon/shard/sharded_model.h"
#include "models/gpt2.h"
#include "support/mpi_checks.h"
#include "train/batches.h"

using namespace dmuon;

namespace {

constexpr int64_t length = 11;

Gpt2Settings settings(bool tied) {
  Gpt2Settings s;
  s.layers = 2;
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
  bool recompute = false;
  HostMode mode = HostMode::normal;
  ShardedModelOptions options = {};
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> gradients;  // of the first step, whole, where held
  std::map<std::string, int64_t> first;                  // first held element
  std::map<std::string, std::vector<double>> parameters;
};

Result train_small(Communicator& world, const Case& c, int steps) {
  const std::unique_ptr<Backend> backend = make_cpu_backend({.mode = c.mode, .threads = 1});
  Gpt2 model(settings(c.tied));
  model.set_recompute(c.recompute);
  RuleTable table;
  table.rules.push_back(make_muon(muon_options("keller")));
  table.rules.push_back(make_adamw({}));
  std::vector<PlanTensor> tensors;
  for (const ParameterDeclaration& parameter : model.inventory().parameters()) {
    const bool matrix = parameter.role == ParameterRole::matrix;
    table.rule_of.push_back(matrix ? 0 : 1);
    tensors.push_back({parameter.name, parameter.shape, parameter.unit, matrix, matrix ? table.rules[0]->flops(parameter.shape) : 0.0});
  }
  Plan plan = make_plan(tensors, static_cast<int>(model.inventory().units().size()), {.slots = world.size(), .cut_elements = 128});
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
  for (int step = 1; step <= steps; ++step) {
    // The block of this rank, in micro-batches; the number of micro-batches is the same on every rank.
    const int64_t base = c.global_batch / world.size(), extra = c.global_batch % world.size();
    const int64_t begin = world.rank() * base + std::min<int64_t>(world.rank(), extra), mine = base + (world.rank() < extra ? 1 : 0);
    const int64_t largest = base + (extra > 0 ? 1 : 0);
    sharded.begin_step();
    double loss = 0.0;
    for (int64_t done = 0; done < largest; done += c.micro_batch) {
      sharded.begin_micro_batch();
      const int64_t count = std::min(c.micro_batch, mine - std::min(mine, done));
      if (count > 0) {
        ExecutionContext context{*backend, backend->compute_stream()};
        context.dropout_seed = mix64(static_cast<uint64_t>(step));
        context.first_sequence = begin + done;
        PassSeconds seconds;
        loss += train_micro_batch(model, context, batch(step, begin + done, count), 1.0 / static_cast<double>(c.global_batch * length),
                                  seconds);
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
  }
  sharded.wait_for_parameters();
  sharded.check_replicas();
  for (size_t i = 0; i < model.inventory().parameters().size(); ++i)
    result.parameters[model.inventory().parameters()[i].name] = to_doubles(*backend, sharded.value(static_cast<int>(i)));
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

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 120});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  const auto self = make_self_communicator();
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
  const int code = checks.finish();
  world.finish();
  return code;
}
