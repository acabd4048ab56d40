// Runs of several ranks that start from Hugging Face directories: what each rank reads and allocates, gradients and three updates
// against torch, and a read that fails on one rank.
#include <malloc.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "dmuon/comm/world.h"
#include "huggingface/huggingface_support.h"
#include "huggingface/sharded_import.h"
#include "io/io_support.h"
#include "support/mpi_checks.h"
#include "train/agreement.h"
#include "train/batches.h"
#include "train/load_model.h"

using namespace dmuon;
using namespace dmuon::test;

// Everything that goes through operator new is counted: what the backend's allocator does not see. The form that does not throw is
// replaced too: `operator delete` below gets its blocks as well (std::stable_sort's buffer), and a sanitizer's own would not match.
namespace {
std::atomic<int64_t> live{0}, peak{0};
}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* block = std::malloc(bytes);
  if (block == nullptr) return nullptr;
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(block));
  for (int64_t highest = peak; now > highest && !peak.compare_exchange_weak(highest, now);) {
  }
  return block;
}
void* operator new(size_t bytes) {
  void* block = operator new(bytes, std::nothrow);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) live -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace {

struct Kind {
  const char* fixture;
  DType dtype;
};

// Exact in every dtype, different in neighbouring elements.
float value_of(const std::string& parameter, int64_t element) {
  return static_cast<float>((element + static_cast<int64_t>(hash_name(parameter) % 97)) % 251) - 125.0F;
}

// A directory of a few small shards with a model larger than the fixture's.
void write_directory(const Path& directory, const Kind& kind, int64_t vocabulary_size = 1501) {
  const HuggingFaceModel model = read_huggingface_config(huggingface_fixture(kind.fixture), models());
  const Json settings = with(model.settings, {{"layers", 3}, {"vocabulary_size", vocabulary_size}});
  HuggingFaceExport request;
  request.directory = directory;
  request.config = model.family.huggingface.config(settings);
  request.layout = model.family.huggingface.layout(settings);
  request.dtype = kind.dtype;
  request.shard_bytes = 50'000;
  request.read = [](const std::string& parameter, int64_t first, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = value_of(parameter, first + i);
  };
  write_huggingface(request);
}

void check_load(testing::MpiChecks& checks, Communicator& world, const Path& directory, const Kind& kind, int stage) {
  ShardedImport run(world, directory, stage, true);
  const Inventory& inventory = run.plan.model->inventory();
  const HuggingFaceReader reader(directory, run.layout(), inventory);
  const int64_t size = size_of(kind.dtype), headers = reader.bytes_read();
  int64_t owned = 0, rows_touched = 0, largest = 0, all = 0;
  for (const HeldPiece& held : run.sharded->held()) {
    const Shape& shape = run.parameter(held).shape;
    owned += held.piece.count * size;
    // Of a tensor that the file holds transposed, a range that starts or ends inside a row needs the whole row.
    const int64_t columns = shape.rank() < 2 ? 1 : shape[1];
    const int64_t rows = (held.piece.first + held.piece.count + columns - 1) / columns - held.piece.first / columns;
    rows_touched += held.piece.count == 0 ? 0 : rows * columns * size;
  }
  for (const ParameterDeclaration& parameter : inventory.parameters()) {
    largest = std::max(largest, parameter.shape.elements() * 4);
    all += parameter.shape.elements() * size;
  }
  Allocator& allocator = run.backend->allocator();
  allocator.reset_peak();
  const int64_t backend_before = allocator.statistics().total.current, before = live;
  peak = before;
  run.sharded->fill_masters([&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
    reader.read(parameter.name, first, count, out);
  });
  const int64_t read = reader.bytes_read() - headers, host = peak - before;
  const std::string what = text(kind.fixture, " ", name_of(kind.dtype), ", stage ", stage, ": ");
  checks.check(owned > 0, what + "this rank owns nothing");
  if (std::string_view(kind.fixture) == "gpt2")
    checks.check(read >= owned && read <= rows_touched, text(what, "read ", read, " bytes, owns ", owned, " in rows of ", rows_touched));
  else
    checks.check(read == owned, text(what, "read ", read, " bytes, owns ", owned));
  // A rank's part is far less than everything.
  if (world.size() > 1) checks.check(read < all * 4 / (3 * world.size()) + largest, text(what, "read ", read, " of ", all));
  checks.check(host <= largest + 16384, text(what, "beyond the model ", host, " bytes were allocated, the largest tensor has ", largest));
  checks.check(allocator.statistics().total.peak == backend_before, text(what, "the backend allocated while loading"));
  const double together = world.all_reduce(std::vector<double>{static_cast<double>(owned)}, ReduceOperation::sum)[0];
  checks.check(static_cast<int64_t>(together) == all, text(what, "the ranks own ", together, " of ", all));
  bool equal = true;
  for (const HeldPiece& held : run.sharded->held()) {
    const std::vector<double> values = to_doubles(*run.backend, held.master);
    for (int64_t i = 0; i < held.piece.count; ++i)
      equal = equal && values[static_cast<size_t>(i)] == static_cast<double>(value_of(run.parameter(held).name, held.piece.first + i));
  }
  checks.check(equal, what + "values");
}

// Of a table of 9 MB a model that is loaded for use holds no second copy.
void check_use(testing::MpiChecks& checks, const Path& directory, const Kind& kind) {
  write_directory(directory, kind, 70'001);
  const std::unique_ptr<Backend> backend = make_cpu_backend({.mode = HostMode::normal, .threads = 1});
  const int64_t before = live;
  peak = before;
  const LoadedModel loaded = load_model(*backend, directory.string(), "", models());
  const int64_t host = peak - before - 5'000'000;
  checks.check(host < 0, text(kind.fixture, " for use: ", host, " bytes too many were allocated beyond the model"));
  bool equal = true;
  for (const ParameterDeclaration& parameter : loaded.model->inventory().parameters()) {
    const std::vector<double> values = to_doubles(*backend, parameter.state->value);
    for (size_t i = 0; i < values.size(); ++i)
      equal = equal && values[i] == static_cast<double>(value_of(parameter.name, static_cast<int64_t>(i)));
  }
  checks.check(equal, text(kind.fixture, " for use: values"));
}

HostTokenBatch share_of(const Batch& batch, Communicator& world) {
  const Block mine = block(batch.batch, world.rank(), world.size());
  HostTokenBatch out;
  out.sequences = mine.count;
  out.length = batch.length;
  const auto begin = mine.first * batch.length, end = begin + mine.count * batch.length;
  out.tokens.assign(batch.tokens.begin() + begin, batch.tokens.begin() + end);
  out.targets.assign(batch.targets.begin() + begin, batch.targets.begin() + end);
  out.valid_targets = end - begin;
  return out;
}

// The largest difference of the held pieces from `expected`, where those of one parameter are at most 1e-4 of its norm apart.
struct Difference {
  double absolute = 0, relative = 0;
};
Difference compare(ShardedImport& run, Tensor HeldPiece::*of, const Values& expected) {
  Difference difference;
  for (const HeldPiece& held : run.sharded->held()) {
    if (!expected.contains(run.parameter(held).name)) continue;  // the fixtures are small
    const std::vector<double>& whole = expected.at(run.parameter(held).name);
    const std::vector<double> values = to_doubles(*run.backend, held.*of);
    double squares = 0;
    for (int64_t i = 0; i < held.piece.count; ++i) {
      const double apart = std::abs(values[static_cast<size_t>(i)] - whole[static_cast<size_t>(held.piece.first + i)]);
      difference.absolute = std::max(difference.absolute, apart);
      squares += apart * apart;
    }
    const double norm = std::sqrt(dot(whole, whole));
    if (norm > 1e-6) difference.relative = std::max(difference.relative, std::sqrt(squares) / norm);
  }
  return difference;
}

void check_parity(testing::MpiChecks& checks, Communicator& world, const std::string& name, int stage, bool with_muon) {
  const std::string what = text(name, ", stage ", stage, with_muon ? ", muon: " : ", adamw: ");
  ShardedImport run(world, huggingface_fixture(name), stage, with_muon);
  const auto values = huggingface_values(world, run.directory, run.family, run.plan.settings, run.plan.model->inventory());
  agreed(world, [&] { run.sharded->fill_masters(values); });
  run.sharded->publish_all();
  run.sharded->check_replicas();
  const SafetensorsReader expected(huggingface_fixture(name) / "expected.safetensors");
  const Batch batch = fixture_batch(expected);
  const HostTokenBatch mine = share_of(batch, world);
  const auto total = static_cast<double>(batch.tokens.size());
  Values start;
  for (const HeldPiece& held : run.sharded->held())
    start[text(run.parameter(held).name, held.piece.first)] = to_doubles(*run.backend, held.master);
  for (int64_t step = 1; step <= 3; ++step) {
    StepClock clock;
    run.sharded->begin_step(1);
    run.sharded->begin_micro_batch();
    double loss = 0;
    ExecutionContext context{*run.backend, run.backend->compute_stream()};
    if (mine.sequences > 0) loss = to_doubles(*run.backend, train_micro_batch(*run.plan.model, context, mine, 1.0 / total, clock))[0];
    run.sharded->end_micro_batch();
    const GradientReport report = run.sharded->finish_gradients(std::vector<double>{loss});
    if (step == 1) {
      const double wanted = read_floats(expected, "loss")[0];
      checks.check(std::abs(report.sums[0] / total - wanted) <= 1e-6 * wanted,
                   text(what, "loss ", report.sums[0] / total, ", not ", wanted));
      const Difference apart = compare(run, &HeldPiece::gradient, expected_values(expected, run.layout(), "gradient"));
      checks.check(apart.relative < 1e-4 && apart.absolute < 1e-5,
                   text(what, "gradients differ by ", apart.relative, ", ", apart.absolute));
    }
    run.sharded->update(std::vector<StepValues>{{step, 0.02, 1.0}, {step, 1e-2, 1.0}});
  }
  run.sharded->wait_for_parameters();
  const Difference apart = compare(run, &HeldPiece::master, expected_values(expected, run.layout(), with_muon ? "muon" : "adamw"));
  checks.check(apart.absolute < 1e-4, text(what, "after three steps parameters differ by ", apart.absolute));
  double moved = 0;
  for (const HeldPiece& held : run.sharded->held()) {
    const std::vector<double> now = to_doubles(*run.backend, held.master);
    const std::vector<double>& before = start.at(text(run.parameter(held).name, held.piece.first));
    for (size_t i = 0; i < now.size(); ++i) moved = std::max(moved, std::abs(now[i] - before[i]));
  }
  checks.check(moved > 1e-3, what + "nothing moved");
}

}  // namespace

int main() {
  World world = World::start({.deadline_seconds = 60});
  Communicator& all = world.communicator();
  testing::MpiChecks checks(all);
  {
    const TemporaryDirectory mine;  // rank 0's is everybody's
    const Path directory = all.broadcast_text(mine.path().string(), 0);
    for (const Kind& kind : {Kind{"qwen3", DType::float32}, {"qwen2", DType::bfloat16}, {"gpt2", DType::float32}}) {
      const Path from = directory / text(kind.fixture, name_of(kind.dtype));
      checks.section("write", [&] {
        if (all.rank() == 0) write_directory(from, kind);
      });
      for (int stage = 1; stage <= 3; ++stage)
        checks.section("what a rank reads and allocates", [&] { check_load(checks, all, from, kind, stage); });
      if (all.size() == 1 && kind.dtype == DType::bfloat16) checks.section("for use", [&] { check_use(checks, directory / "use", kind); });
    }
  }
  for (const char* name : {"gpt2", "qwen2", "qwen3"})
    for (int stage = 1; stage <= 3; ++stage)
      for (const bool with_muon : {false, true}) checks.section("as torch", [&] { check_parity(checks, all, name, stage, with_muon); });
  checks.section("a read that fails on one rank is every rank's error", [&] {
    ShardedImport run(all, huggingface_fixture("qwen2"), 2, true);
    const auto values = huggingface_values(all, run.directory, run.family, run.plan.settings, run.plan.model->inventory());
    std::string message;
    try {
      agreed(all, [&] {
        run.sharded->fill_masters([&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
          if (all.rank() == all.size() - 1) throw StorageError("cannot read model-00003-of-00004.safetensors at byte 7");
          values(parameter, first, count, out);
        });
      });
    } catch (const Error& error) {
      message = error.what();
      checks.check(error.exit_code() == ExitCode::storage, "exit code");
    }
    checks.check(message.find("cannot read model-00003-of-00004.safetensors at byte 7") != std::string::npos, "message: " + message);
    checks.check(all.size() == 1 || message.find(text("rank ", all.size() - 1)) != std::string::npos, "rank: " + message);
  });
  const int code = checks.finish();
  world.finish();
  return code;
}
