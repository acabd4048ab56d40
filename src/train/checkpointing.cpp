#include "train/checkpointing.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <tuple>

#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_report.h"
#include "dmuon/io/checkpoint_retention.h"
#include "train/local_state.h"
#include "train/state_gather.h"

namespace dmuon {

Json to_json(const TrainState& state) {
  Json json = Json::object();
  json.set("step", state.step);
  json.set("updates", state.updates);
  json.set("samples", state.samples);
  json.set("tokens", state.tokens);
  json.set("skips_in_a_row", state.skips_in_a_row);
  if (state.evaluation_pending) json.set("evaluation_pending", true);
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
    if (const Json* pending = json.find("evaluation_pending")) state.evaluation_pending = pending->as_bool();
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

  const auto& parameters = model.inventory().parameters();
  const int64_t bytes = checkpoint_bytes(model);
  CheckpointWriter writer({directory_, request.state.step, run_id_, world_.rank()}, crash_);
  try {
    agreed(world_, [&] { check_free_space(directory_, bytes); });
    agreed(world_, [&] {
      if (world_.rank() == 0) writer.begin();
    });

    std::vector<CheckpointTensor> model_tensors, state_tensors;
    StateGather gather(backend_, world_, model);
    std::map<std::tuple<int, int, int>, size_t> cut;  // (tensor, state, replica) -> item
    for (size_t i = 0; i < gather.items().size(); ++i)
      cut[{gather.items()[i].tensor, gather.items()[i].state, gather.items()[i].replica}] = i;
    const auto declare = [&](std::string key, const HeldPiece& held, int state, int replica, const Tensor& whole) -> CheckpointTensor {
      const Shape& shape = parameters[static_cast<size_t>(held.piece.tensor)].shape;
      const auto item = cut.find({held.piece.tensor, state, replica});
      if (item == cut.end()) return whole_tensor(backend_, std::move(key), shape, whole);
      return {std::move(key), DType::float32, shape, [&gather, index = item->second](int64_t offset, void* destination, int64_t chunk) {
                gather.read(index, offset / 4, chunk / 4, static_cast<float*>(destination));
              }};
    };
    const int replica = model.grid().replica_of(world_.rank());
    for (const HeldPiece& held : model.held()) {
      const int tensor = held.piece.tensor;
      const std::string& name = parameters[static_cast<size_t>(tensor)].name;
      const bool writes = gather.writer(tensor) == world_.rank();
      if (writes) model_tensors.push_back(declare(name, held, StateGather::master, gather.source(tensor), held.master));
      if (held.rule < 0) continue;
      const auto states = model.rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s) {
        const int state = static_cast<int>(s);
        if (is_per_replica(model.rules(), tensor, states[s])) {
          if (gather.writer(tensor, replica) == world_.rank())
            state_tensors.push_back(declare(state_key(name, states[s].name, replica), held, state, replica, held.state[s]));
        } else if (writes) {
          state_tensors.push_back(declare(state_key(name, states[s].name), held, state, gather.source(tensor), held.state[s]));
        }
      }
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
  const int replica = model.grid().replica_of(world_.rank()), replicas = model.grid().replicas;
  bool converted = false;
  int saved = 0;
  agreed(world_, [&] {
    saved = saved_replicas(reader);
    std::vector<ExpectedTensor> expected;
    for (size_t t = 0; t < parameters.size(); ++t) {
      expected.push_back({parameters[t].name, DType::float32, parameters[t].shape});
      const int rule = model.rules().rule_of[t];
      if (rule < 0) continue;
      for (const StateSpecification& state : model.rules().rules[static_cast<size_t>(rule)]->state()) {
        if (!is_per_replica(model.rules(), static_cast<int>(t), state)) {
          expected.push_back({state_key(parameters[t].name, state.name), DType::float32, parameters[t].shape});
          continue;
        }
        for (int from = 0; from < std::max(1, saved); ++from)
          expected.push_back({state_key(parameters[t].name, state.name, from), DType::float32, parameters[t].shape});
        converted = saved != replicas;
      }
    }
    reader.check_tensors(expected);

    constexpr int64_t chunk = int64_t{1} << 20;
    std::vector<float> host(static_cast<size_t>(chunk));
    Stream& stream = backend_.compute_stream();
    // `read(first, values)` of the piece, chunk by chunk.
    const auto fill = [&](const HeldPiece& held, const Tensor& destination, const auto& read) {
      for (int64_t done = 0; done < destination.elements(); done += chunk) {
        const int64_t count = std::min(chunk, destination.elements() - done);
        read(held.piece.first + done, std::span(host).first(static_cast<size_t>(count)));
        backend_.copy_from_host(stream, host.data(), destination.flat(done, count));
      }
    };
    const auto whole_job = [&](const std::string& key) {
      return [&reader, key](int64_t first, std::span<float> values) {
        reader.read_tensor(key, first * 4, values.data(), static_cast<int64_t>(values.size()) * 4);
      };
    };
    for (const HeldPiece& held : model.held()) {
      const std::string& name = parameters[static_cast<size_t>(held.piece.tensor)].name;
      fill(held, held.master, whole_job(name));
      if (held.rule < 0) continue;
      const auto states = model.rules().rules[static_cast<size_t>(held.rule)]->state();
      for (size_t s = 0; s < states.size(); ++s) {
        if (!is_per_replica(model.rules(), held.piece.tensor, states[s]))
          fill(held, held.state[s], whole_job(state_key(name, states[s].name)));
        else
          fill(held, held.state[s], [&](int64_t first, std::span<float> values) {
            read_local_state(reader, name, states[s].name, replica, replicas, saved, first, values);
          });
      }
    }
  });
  if (converted && world_.rank() == 0)
    log_information(text("workers: ", saved, saved == 1 ? " has" : " have", " saved ", saved == 1 ? "its" : "their", " own momentum, ",
                         replicas, " go on: each starts from the average of the saved ones, so the run is not the one it was"));
  model.publish_all();
  model.check_replicas();
}

}  // namespace dmuon
