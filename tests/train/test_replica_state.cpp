// State that every replica has for itself travels through checkpoints between grids of any shape: bit for bit where the number of
// replicas stays, as the average where it changes.
#include <cstring>
#include <filesystem>
#include <map>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "models/gpt2.h"
#include "support/mpi_checks.h"
#include "train/checkpointing.h"
#include "train/local_state.h"

using namespace dmuon;

namespace {

// Votes, and has one state of each kind. Never run.
class TwoStates final : public UpdateRule {
 public:
  explicit TwoStates(Cutting cutting) : cutting_(cutting) {}
  std::string name() const override { return "two_states"; }
  Agreement agreement() const override { return Agreement::vote; }
  Cutting cutting() const override { return cutting_; }
  std::vector<StateSpecification> state() const override { return {{"momentum", true}, {"second", false}}; }
  Json description() const override { return Json::object(); }
  double flops(const Shape& shape) const override { return static_cast<double>(shape.elements()); }
  void prepare(Backend&, Stream&, const StepValues&) override {}
  void global(Backend&, Stream&, std::span<UpdateItem>) override {}

 private:
  Cutting cutting_;
};

// What every value of a tensor is, by its checkpoint key.
float value_of(const std::string& key, int64_t index) {
  return static_cast<float>(Random(5, RandomStream::test).normal(static_cast<uint64_t>(index), hash_name(key)));
}

// A model of odd sizes whose matrices vote whole and whose embeddings vote cut; the rest agrees by mean.
struct Job {
  Job(Communicator& world, int replicas) : world(world), backend(make_cpu_backend({.threads = 1})) {
    Gpt2Settings settings;
    settings.layers = 2;
    settings.heads = 5;
    settings.width = 35;
    settings.context_length = 7;
    settings.vocabulary_size = 301;
    model = std::make_unique<Gpt2>(settings);
    RuleTable table;
    table.rules.push_back(std::make_unique<TwoStates>(Cutting::whole));
    table.rules.push_back(std::make_unique<TwoStates>(Cutting::anywhere));
    table.rules.push_back(make_adamw({}));
    std::vector<PlanTensor> mean, vote;
    for (const ParameterDeclaration& parameter : model->inventory().parameters()) {
      const int rule = parameter.role == ParameterRole::matrix ? 0 : parameter.shape.rank() == 2 ? 1 : 2;
      table.rule_of.push_back(rule);
      PlanTensor tensor{parameter.name, parameter.shape, parameter.unit, rule == 0, rule == 0 ? 1.0 : 0.0, rule};
      vote.push_back(tensor);
      mean.push_back(tensor);
      (rule == 2 ? vote : mean).back().unit = -1;
    }
    const int units = static_cast<int>(model->inventory().units().size()), shards = world.size() / replicas;
    Plan mean_plan = make_plan(mean, units, {.slots = world.size(), .cut_elements = 64, .replicas = replicas, .shards = shards});
    Plan vote_plan = make_plan(vote, units, {.slots = shards, .cut_elements = 64, .replicas = 1, .shards = shards});
    ShardedModelOptions options;
    options.replicas = replicas;
    sharded = std::make_unique<ShardedModel>(*backend, world, *model, std::move(table),
                                             JobPlans(std::move(mean_plan), std::move(vote_plan)), options);
  }

  // Calls visit(key, first element, tensor) for everything that this rank holds.
  template <class Visitor>
  void visit(Visitor visitor) {
    for (HeldPiece& held : sharded->held()) {
      const std::string& name = sharded->inventory().parameters()[static_cast<size_t>(held.piece.tensor)].name;
      visitor(name, held.piece.first, held.master);
      const auto states = sharded->rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s) {
        const bool own = is_per_replica(sharded->rules(), held.piece.tensor, states[s]);
        visitor(state_key(name, states[s].name, own ? sharded->grid().replica_of(world.rank()) : -1), held.piece.first, held.state[s]);
      }
    }
  }
  void fill() {
    visit([&](const std::string& key, int64_t first, const Tensor& tensor) {
      std::vector<float> host(static_cast<size_t>(tensor.elements()));
      for (size_t i = 0; i < host.size(); ++i) host[i] = value_of(key, first + static_cast<int64_t>(i));
      backend->copy_from_host(backend->compute_stream(), host.data(), tensor);
    });
    sharded->publish_all();
    sharded->wait_for_parameters();
  }
  // Number of values that are not `expected(key, index)`.
  int64_t differences(const std::function<float(const std::string&, int64_t)>& expected) {
    int64_t count = 0;
    visit([&](const std::string& key, int64_t first, const Tensor& tensor) {
      std::vector<float> host(static_cast<size_t>(tensor.elements()));
      backend->copy_to_host(backend->compute_stream(), tensor, host.data());
      for (size_t i = 0; i < host.size(); ++i) {
        const float wanted = expected(key, first + static_cast<int64_t>(i));
        count += std::memcmp(&wanted, &host[i], sizeof wanted) != 0;
      }
    });
    return count;
  }

  Communicator& world;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Gpt2> model;
  std::unique_ptr<ShardedModel> sharded;
};

// The values that a job of another number of replicas starts from.
float averaged(const std::string& key, int64_t index, int saved) {
  const CheckpointKey parsed = parse_checkpoint_key(key);
  if (parsed.replica < 0) return value_of(key, index);
  double sum = 0.0;
  for (int from = 0; from < saved; ++from) sum += static_cast<double>(value_of(state_key(parsed.parameter, parsed.state, from), index));
  return static_cast<float>(sum / saved);
}

void save(Job& job, Communicator& world, const std::string& directory) {
  CheckpointKeeper keeper(*job.backend, world, directory, 2);
  SaveRequest request;
  request.state.step = 1;
  keeper.save(*job.sharded, request);
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 60});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  std::string directory = (std::filesystem::temp_directory_path() / "dmuon-replicas-XXXXXX").string();
  if (all.rank() == 0) directory = mkdtemp(directory.data());
  directory = all.broadcast_text(directory, 0);
  std::vector<int> grids;
  for (int replicas = 1; replicas <= all.size(); ++replicas)
    if (all.size() % replicas == 0) grids.push_back(replicas);

  for (const int saved : grids) {
    const std::string place = text(directory, "/", saved);
    checks.section(text("saved by ", saved, " replicas: every tensor once, every replica's own state"), [&] {
      Job job(all, saved);
      job.fill();
      save(job, all, place);
      const CheckpointReader reader(Path(place) / checkpoint_name(1));
      int64_t bytes = 0;
      for (const CheckpointEntry& entry : reader.tensors()) {
        bytes += entry.bytes;
        std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
        reader.read_tensor(entry.key, values.data(), entry.bytes);
        int64_t wrong = 0;
        for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != value_of(entry.key, static_cast<int64_t>(i));
        checks.check(wrong == 0, text(entry.key, ": ", wrong, " values differ"));
      }
      checks.check(bytes == checkpoint_bytes(*job.sharded), text(bytes, " bytes, foreseen ", checkpoint_bytes(*job.sharded)));
    });
    for (const int loaded : grids)
      checks.section(text("saved by ", saved, " replicas, loaded by ", loaded), [&] {
        Job job(all, loaded);
        CheckpointKeeper keeper(*job.backend, all, place, 2);
        keeper.load(*job.sharded, *keeper.open("must"));
        const int64_t wrong = job.differences(
            [&](const std::string& key, int64_t index) { return saved == loaded ? value_of(key, index) : averaged(key, index, saved); });
        checks.check(wrong == 0, text(wrong, " values differ"));
      });
  }

  // As many replicas, each of fewer shards.
  if (all.size() == 4)
    checks.section("two replicas of two shards go on as two of one", [&] {
      const std::unique_ptr<Communicator> half = all.split(all.rank() / 2, all.rank(), "half");
      Job job(*half, 2);
      CheckpointKeeper keeper(*job.backend, *half, text(directory, "/half", all.rank() / 2), 2);
      keeper.load(*job.sharded, CheckpointReader(Path(directory) / "2" / checkpoint_name(1)));
      const int64_t wrong = job.differences(value_of);
      checks.check(wrong == 0, text(wrong, " values differ"));
    });

  checks.section("a replica's state that is not a number is named and never saved", [&] {
    Job job(all, all.size());
    job.fill();
    if (all.rank() == all.size() - 1)
      for (HeldPiece& held : job.sharded->held()) {
        if (!held.vote) continue;
        const float bad = std::numeric_limits<float>::infinity();
        job.backend->copy_from_host(job.backend->compute_stream(), &bad, held.state[0].flat(0, 1));
        break;
      }
    bool refused = false;
    try {
      save(job, all, directory + "/bad");
    } catch (const AgreedError& error) {
      refused = error.exit_code() == ExitCode::numerical && std::string(error.what()).find("parameter ") != std::string::npos;
    }
    checks.check(refused, "every rank refuses");
    checks.check(list_checkpoints(directory + "/bad").empty(), "nothing was published");
  });

  const int code = checks.finish();
  if (all.rank() == 0) std::filesystem::remove_all(directory);
  world.finish();
  return code;
}
