// Checkpoints travel between numbers of ranks bit for bit, and the validation loss does not know how many ranks there are.
#include <cstring>
#include <filesystem>
#include <map>

#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "models/gpt2.h"
#include "support/mpi_checks.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"

using namespace dmuon;

namespace {

struct Job {
  explicit Job(Communicator& world) : backend(make_cpu_backend({.threads = 1})) {
    Gpt2Settings settings;
    settings.layers = 2;
    settings.heads = 5;
    settings.width = 35;  // odd, so nothing divides
    settings.context_length = 7;
    settings.vocabulary_size = 301;
    model = std::make_unique<Gpt2>(settings);
    RuleTable table;
    table.rules.push_back(make_muon(muon_options("keller")));
    table.rules.push_back(make_adamw({}));
    std::vector<PlanTensor> tensors;
    for (const ParameterDeclaration& parameter : model->inventory().parameters()) {
      const bool matrix = parameter.role == ParameterRole::matrix;
      table.rule_of.push_back(matrix ? 0 : 1);
      tensors.push_back({parameter.name, parameter.shape, parameter.unit, matrix, matrix ? table.rules[0]->flops(parameter.shape) : 0.0});
    }
    Plan plan = make_plan(tensors, static_cast<int>(model->inventory().units().size()), {.slots = world.size(), .cut_elements = 128});
    sharded = std::make_unique<ShardedModel>(*backend, world, *model, std::move(table), std::move(plan));
  }

  // Every held value becomes a function of its key and index.
  void fill(uint64_t seed) {
    const auto values = [&](const std::string& key, int64_t first, const Tensor& tensor) {
      std::vector<float> host(static_cast<size_t>(tensor.elements()));
      const Random random(seed, RandomStream::test);
      for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<float>(0.1 * random.normal(static_cast<uint64_t>(first) + i, hash_name(key)));
      backend->copy_from_host(backend->compute_stream(), host.data(), tensor);
    };
    visit([&](const std::string& key, const HeldPiece& held, const Tensor& tensor) { values(key, held.piece.first, tensor); });
    sharded->publish_all();
    sharded->wait_for_parameters();
  }
  // All that this rank holds: key -> (first element, values).
  std::map<std::string, std::pair<int64_t, std::vector<float>>> content() {
    std::map<std::string, std::pair<int64_t, std::vector<float>>> all;
    visit([&](const std::string& key, const HeldPiece& held, const Tensor& tensor) {
      std::vector<float> host(static_cast<size_t>(tensor.elements()));
      backend->copy_to_host(backend->compute_stream(), tensor, host.data());
      all[key] = {held.piece.first, std::move(host)};
    });
    return all;
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Gpt2> model;
  std::unique_ptr<ShardedModel> sharded;

 private:
  template <class Visitor>
  void visit(Visitor visitor) {
    for (HeldPiece& held : sharded->held()) {
      const std::string& name = sharded->inventory().parameters()[static_cast<size_t>(held.piece.tensor)].name;
      visitor(name, held, held.master);
      const auto states = sharded->rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s) visitor(state_key(name, states[s].name), held, held.state[s]);
    }
  }
};

class FixedWindows final : public Dataset {
 public:
  int64_t length() const override { return 7; }
  int64_t samples_per_epoch() const override { return 23; }
  HostTokenBatch batch(std::span<const int64_t> samples) const override {
    HostTokenBatch out;
    out.sequences = static_cast<int64_t>(samples.size());
    out.length = 7;
    for (int64_t sample : samples)
      for (int64_t t = 0; t < 7; ++t) {
        out.tokens.push_back(static_cast<int32_t>((sample * 31 + t * 7) % 301));
        out.targets.push_back(static_cast<int32_t>((sample * 31 + (t + 1) * 7) % 301));
      }
    out.valid_targets = out.sequences * 7;
    return out;
  }
};

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 60});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  const auto self = make_self_communicator();
  std::string directory = (std::filesystem::temp_directory_path() / "dmuon-checkpointing-XXXXXX").string();
  if (all.rank() == 0) directory = mkdtemp(directory.data());
  directory = all.broadcast_text(directory, 0);
  const auto compare = [&](Job& job, Job& whole) {
    const auto expected = whole.content();
    for (const auto& [key, piece] : job.content()) {
      const auto& [first, values] = piece;
      checks.check(std::memcmp(values.data(), expected.at(key).second.data() + first, values.size() * sizeof(float)) == 0,
                   text(key, " differs"));
    }
  };

  checks.section("written by all ranks, read by one", [&] {
    Job job(all);
    job.fill(1);
    {
      CheckpointKeeper keeper(*job.backend, all, directory + "/a", 2);
      for (int64_t step : {3, 5, 9}) {
        SaveRequest request;
        request.state.step = step;
        keeper.save(*job.sharded, request);
      }
    }
    Job alone(*self);
    const CheckpointReader reader(Path(directory) / "a" / checkpoint_name(9));
    CheckpointKeeper keeper(*alone.backend, *self, text(directory, "/own", all.rank()), 2);
    keeper.load(*alone.sharded, reader);
    compare(job, alone);
    checks.check(list_checkpoints(Path(directory) / "a").size() == 2, "two checkpoints are kept");
    all.all_gather_text("");
  });

  checks.section("written by one, read by all ranks", [&] {
    Job alone(*self);
    alone.fill(2);
    if (all.rank() == 0) {
      CheckpointKeeper keeper(*alone.backend, *self, directory + "/b", 2);
      SaveRequest request;
      request.state.step = 4;
      keeper.save(*alone.sharded, request);
    }
    all.all_gather_text("");
    Job job(all);
    CheckpointKeeper keeper(*job.backend, all, directory + "/b", 2);
    const auto reader = keeper.open("must");
    checks.check(reader != nullptr && reader->step() == 4, "step 4 is found");
    keeper.load(*job.sharded, *reader);
    compare(job, alone);
  });

  checks.section("a value that is not finite is named and never saved", [&] {
    Job job(all);
    job.fill(3);
    if (all.rank() == all.size() - 1 && !job.sharded->held().empty()) {
      const float bad = std::numeric_limits<float>::quiet_NaN();
      job.backend->copy_from_host(job.backend->compute_stream(), &bad, job.sharded->held()[0].master.flat(0, 1));
    }
    CheckpointKeeper keeper(*job.backend, all, directory + "/c", 2);
    SaveRequest request;
    request.state.step = 1;
    bool refused = false;
    try {
      keeper.save(*job.sharded, request);
    } catch (const AgreedError& error) {
      refused = error.exit_code() == ExitCode::numerical && std::string(error.what()).find("parameter ") != std::string::npos;
    }
    checks.check(refused, "every rank refuses");
    checks.check(list_checkpoints(directory + "/c").empty(), "nothing was published");
  });

  checks.section("the validation loss has the same bits on every number of ranks", [&] {
    Job job(all), alone(*self);
    job.fill(4);
    alone.fill(4);
    for (int64_t batch_size : {1, 4, 5, 100}) {
      const double together = *evaluate(*job.backend, all, *job.model, FixedWindows(), batch_size, 0);
      const double single = *evaluate(*alone.backend, *self, *alone.model, FixedWindows(), batch_size, 0);
      checks.check(together == single, text("batches of ", batch_size, ": ", together, " against ", single));
    }
    checks.check(
        evaluate(*job.backend, all, *job.model, FixedWindows(), 4, 35) != evaluate(*job.backend, all, *job.model, FixedWindows(), 4, 0),
        "maximum_tokens cuts the set");
  });

  const int code = checks.finish();
  if (all.rank() == 0) std::filesystem::remove_all(directory);
  world.finish();
  return code;
}
