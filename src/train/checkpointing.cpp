#include "train/checkpointing.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_retention.h"
#include "train/state_gather.h"

namespace dmuon {

Json to_json(const TrainState& state) {
  Json json = Json::object();
  json.set("step", state.step);
  json.set("updates", state.updates);
  json.set("samples", state.samples);
  json.set("tokens", state.tokens);
  json.set("skips_in_a_row", state.skips_in_a_row);
  return json;
}

TrainState train_state_from_json(const Json& json) {
  try {
    TrainState state;
    state.step = json.at("step").as_integer();
    state.updates = json.at("updates").as_integer();
    state.samples = json.at("samples").as_integer();
    state.tokens = json.at("tokens").as_integer();
    state.skips_in_a_row = json.at("skips_in_a_row").as_integer();
    return state;
  } catch (const ConfigError& error) {
    throw CheckpointError(text("train_state.json: ", error.what()));
  }
}

namespace {

// Letters and digits, different for every start of the program.
std::string make_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const int64_t words[2] = {static_cast<int64_t>(now), static_cast<int64_t>(getpid())};
  return hash_to_hex(hash_bytes(words, sizeof words)).substr(0, 10);
}

CheckpointTensor whole_tensor(Backend& backend, std::string key, const Shape& shape, Tensor tensor) {
  return {std::move(key), DType::float32, shape, [&backend, tensor](int64_t offset, void* destination, int64_t bytes) {
            backend.copy_to_host(backend.compute_stream(), tensor.flat(offset / 4, bytes / 4), destination);
          }};
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(Backend& backend, Communicator& world, Path directory, int64_t keep)
    : backend_(backend),
      world_(world),
      directory_(std::move(directory)),
      keep_(keep),
      run_id_(world.broadcast_text(make_run_id(), 0)),
      crash_(CrashPoints::from_environment(world.rank())) {
  agreed(world_, [&] {
    if (world_.rank() != 0) return;
    lock_ = std::make_unique<DirectoryLock>(directory_, run_id_, 5.0);
    remove_leftovers(directory_, *lock_);
  });
}

std::unique_ptr<CheckpointReader> CheckpointKeeper::open(const std::string& resume) {
  std::string found;
  agreed(world_, [&] {
    if (world_.rank() != 0) return;
    if (resume == "never") {
      if (!scan_checkpoints(directory_).empty())
        throw ConfigError(text(directory_.string(),
                               " already holds checkpoints; resume them (--resume auto), choose another \"output\", or remove them"));
    } else if (resume == "auto" || resume == "must") {
      // Every byte is proven here, so that a damaged one gives way to the one before it.
      if (const auto path = find_checkpoint(directory_)) found = path->string();
      if (found.empty() && resume == "must") throw CheckpointError(text("--resume must: no checkpoint in ", directory_.string()));
    } else {
      found = resolve_checkpoint(resume).string();
      const CheckpointReader proven(found);
      // A save never overwrites: the run would stop where it meets a checkpoint of its former self.
      const std::vector<CheckpointCandidate> existing = list_checkpoints(directory_);
      const int64_t step = proven.step();
      if (!existing.empty() && existing.back().step > step)
        throw ConfigError(text("--resume ", resume, " is step ", step, ", but ", directory_.string(), " already holds step ",
                               existing.back().step, "; choose another \"output\", or move the later checkpoints away"));
    }
  });
  found = world_.broadcast_text(found, 0);
  if (found.empty()) return nullptr;
  std::unique_ptr<CheckpointReader> reader;
  agreed(world_, [&] {
    reader = std::make_unique<CheckpointReader>(found, CheckpointCheck::sizes);  // rank 0 has proven the content
  });
  resumed_from_ = found;
  return reader;
}

void CheckpointKeeper::require_finite(ShardedModel& model) {
  Stream& stream = backend_.compute_stream();
  Tensor count = backend_.allocate(Shape{1}, DType::int64, MemoryCategory::workspace, "count of non-finite values");
  for (const HeldPiece& held : model.held()) {
    int64_t bad = 0;
    std::vector<Tensor> tensors{held.master};
    tensors.insert(tensors.end(), held.state.begin(), held.state.end());
    for (const Tensor& tensor : tensors) {
      int64_t found = 0;
      backend_.optimizer().count_non_finite(stream, {tensor, count});
      backend_.copy_to_host(stream, count, &found);
      bad += found;
    }
    if (bad > 0)
      throw NumericalError(text(bad, " values (optimizer state included) of parameter ",
                                model.inventory().parameters()[static_cast<size_t>(held.piece.tensor)].name,
                                " are not finite; this state is not saved, the previous checkpoint stands"));
  }
}

void CheckpointKeeper::save(ShardedModel& model, const SaveRequest& request) {
  model.wait_for_parameters();
  agreed(world_, [&] { require_finite(model); });

  int64_t bytes = model.inventory().elements() * 4;
  const auto& parameters = model.inventory().parameters();
  for (size_t t = 0; t < parameters.size(); ++t)
    if (model.rules().rule_of[t] >= 0)
      bytes += parameters[t].shape.elements() * 4 *
               static_cast<int64_t>(model.rules().rules[static_cast<size_t>(model.rules().rule_of[t])]->state().size());
  CheckpointWriter writer({directory_, request.state.step, run_id_, world_.rank()}, crash_);
  try {
    agreed(world_, [&] { check_free_space(directory_, bytes); });
    agreed(world_, [&] {
      if (world_.rank() == 0) writer.begin();
    });

    std::vector<CheckpointTensor> model_tensors, state_tensors;
    StateGather gather(backend_, world_, model);
    std::map<std::pair<int, int>, size_t> cut;  // (tensor, state) -> item
    for (size_t i = 0; i < gather.items().size(); ++i) cut[{gather.items()[i].tensor, gather.items()[i].state}] = i;
    const auto declare = [&](std::string key, const HeldPiece& held, int state, const Tensor& whole) -> CheckpointTensor {
      const Shape& shape = parameters[static_cast<size_t>(held.piece.tensor)].shape;
      const auto item = cut.find({held.piece.tensor, state});
      if (item == cut.end()) return whole_tensor(backend_, std::move(key), shape, whole);
      return {std::move(key), DType::float32, shape, [&gather, index = item->second](int64_t offset, void* destination, int64_t chunk) {
                gather.read(index, offset / 4, chunk / 4, static_cast<float*>(destination));
              }};
    };
    for (const HeldPiece& held : model.held()) {
      if (gather.writer(held.piece.tensor) != world_.rank()) continue;
      const ParameterDeclaration& parameter = parameters[static_cast<size_t>(held.piece.tensor)];
      model_tensors.push_back(declare(parameter.name, held, StateGather::master, held.master));
      if (held.rule < 0) continue;
      const auto states = model.rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s)
        state_tensors.push_back(declare(state_key(parameter.name, states[s].name), held, static_cast<int>(s), held.state[s]));
    }
    Json fragments = Json::array();
    agreed(world_, [&] {
      std::exception_ptr failure;
      try {
        fragments.push_back(writer.write_tensors(model_file_name(world_.rank(), world_.size()), model_tensors));
        fragments.push_back(writer.write_tensors(optimizer_file_name(world_.rank()), state_tensors));
        if (world_.rank() == 0) {
          fragments.push_back(writer.write_text("train_state.json", to_json(request.state).dump(2) + "\n"));
          for (const auto& [name, content] : request.texts) fragments.push_back(writer.write_text(name, content));
        }
      } catch (const CommunicationError&) {
        throw;
      } catch (...) {
        failure = std::current_exception();
      }
      gather.finish();
      if (failure) std::rethrow_exception(failure);
    });
    const std::vector<std::string> gathered = world_.all_gather_text(fragments.dump());
    agreed(world_, [&] {
      if (world_.rank() != 0) return;
      std::vector<Json> all;
      for (const std::string& part : gathered)
        for (Json& fragment : parse_json(part, "checkpoint fragments").as_array()) all.push_back(std::move(fragment));
      ManifestInformation information;
      information.ranks = world_.size();
      information.tokens = request.state.tokens;
      information.configuration_hash = request.configuration_hash;
      information.dataset_fingerprint = request.dataset_fingerprint;
      information.extra = request.extra;
      writer.publish(all, information);
    });
  } catch (const CommunicationError&) {
    throw;  // ranks are gone: nobody can agree on anything any more
  } catch (...) {
    if (world_.rank() == 0) writer.abandon();
    throw;
  }
  agreed(world_, [&] {
    if (world_.rank() != 0) return;
    RetentionPolicy policy;
    policy.keep_last = keep_;
    policy.newest_step = request.state.step;
    policy.resumed_from = resumed_from_;
    apply_retention(directory_, policy, run_id_, crash_);
  });
}

void CheckpointKeeper::load(ShardedModel& model, const CheckpointReader& reader) {
  const auto& parameters = model.inventory().parameters();
  agreed(world_, [&] {
    std::vector<ExpectedTensor> expected;
    for (size_t t = 0; t < parameters.size(); ++t) {
      expected.push_back({parameters[t].name, DType::float32, parameters[t].shape});
      if (const int rule = model.rules().rule_of[t]; rule >= 0)
        for (const StateSpecification& state : model.rules().rules[static_cast<size_t>(rule)]->state())
          expected.push_back({state_key(parameters[t].name, state.name), DType::float32, parameters[t].shape});
    }
    reader.check_tensors(expected);

    constexpr int64_t chunk = int64_t{1} << 20;
    std::vector<float> host(static_cast<size_t>(chunk));
    Stream& stream = backend_.compute_stream();
    const auto fill = [&](const std::string& key, int64_t first, const Tensor& destination) {
      for (int64_t done = 0; done < destination.elements(); done += chunk) {
        const int64_t count = std::min(chunk, destination.elements() - done);
        reader.read_tensor(key, (first + done) * 4, host.data(), count * 4);
        backend_.copy_from_host(stream, host.data(), destination.flat(done, count));
      }
    };
    for (const HeldPiece& held : model.held()) {
      const std::string& name = parameters[static_cast<size_t>(held.piece.tensor)].name;
      fill(name, held.piece.first, held.master);
      if (held.rule < 0) continue;
      const auto states = model.rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s) fill(state_key(name, states[s].name), held.piece.first, held.state[s]);
    }
  });
  model.publish_all();
  model.check_replicas();
}

}  // namespace dmuon
