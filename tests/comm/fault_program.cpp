// One fault per run, for test_faults.cpp: fault_program FAULT [messages]. With "messages" ranks share no memory. Ends as
// a tool's main should.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "comm/watchdog.h"
#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"

using namespace dmuon;

namespace {

Tensor ones(Communicator& group, Backend& backend, int64_t elements, bool in_place) {
  const Shape shape{elements};
  const Tensor tensor = in_place ? group.allocate(backend, shape, DType::float32, MemoryCategory::gradients, "test")
                                 : backend.allocate(shape, DType::float32, MemoryCategory::gradients, "test");
  std::fill_n(tensor.data<float>(), elements, 1.0f);
  return tensor;
}

// Soon a signal hits the last rank.
void signal_last(Communicator& all, int signal) {
  if (all.rank() != all.size() - 1) return;
  std::thread([signal] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kill(getpid(), signal);
  }).detach();
}

// The last rank is hit by a signal while all are busy with large reductions.
void strike(Communicator& all, Stream& stream, int signal, bool in_place) {
  const auto backend = make_cpu_backend();
  const Tensor tensor = ones(all, *backend, int64_t{4} << 20, in_place);
  signal_last(all, signal);
  while (true) {
    all.all_reduce(stream, tensor, ReduceOperation::maximum);
    stream.record().wait();
  }
}

// No file may grow: shared memory cannot be had.
void without_files(Communicator& all, Stream& stream) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_FSIZE, &none);
  const auto backend = make_cpu_backend();
  const auto first = all.split(0, all.rank(), "first");
  const auto second = all.split(0, all.rank(), "second");
  for (Communicator* group : {&all, first.get(), second.get()}) {
    const Tensor tensor = ones(*group, *backend, 100000, true);
    group->all_reduce(stream, tensor, ReduceOperation::sum);
    stream.record().wait();
    if (tensor.data<float>()[99999] != static_cast<float>(all.size())) throw Error(ExitCode::numerical, "a wrong sum");
  }
}

// "TRANSPORT size": the last worker votes on fewer words; "TRANSPORT kill": it dies while all vote again and again.
void vote(Communicator& all, Stream& stream, const std::string& transport_and_fault) {
  std::istringstream in(transport_and_fault);
  std::string kind, fault;
  in >> kind >> fault;
  const auto backend = make_cpu_backend();
  const auto nodes = all.divide_into_nodes(kind == "hierarchical" ? 2 : 1, "voters");
  const auto transport = make_vote_transport(*backend, *nodes, vote_transport_from_name(kind), 100000);
  const bool smaller = fault == "size" && all.rank() == all.size() - 1;
  const Tensor words = backend->allocate({smaller ? 80000 : 100000}, DType::int64, MemoryCategory::gradients, "votes");
  backend->zero(stream, words);
  if (fault == "kill") signal_last(all, SIGKILL);
  for (int64_t step = 0; step == 0 || fault == "kill"; ++step) {
    transport->vote(stream, words, 1, step);
    stream.record().wait();
  }
}

void fault(World& world, const std::string& name) {
  Communicator& all = world.communicator();
  const auto stream = make_worker_stream("comm");
  all.set_deadline(3);
  all.barrier(*stream);
  stream->record().wait();
  const bool last = all.rank() == all.size() - 1;
  if (name == "throw" && last) throw DataError("shard train_000003.bin: 12 bytes are missing; fetch it again");
  if (name == "stop in place") strike(all, *stream, SIGSTOP, true);
  if (name == "stop staged") strike(all, *stream, SIGSTOP, false);
  if (name == "kill in place") strike(all, *stream, SIGKILL, true);
  if (name == "kill staged") strike(all, *stream, SIGKILL, false);
  if (name == "no files") return without_files(all, *stream);
  if (name.starts_with("vote ")) return vote(all, *stream, name.substr(5));
  if (name == "stop" && last) std::raise(SIGSTOP);
  if (name == "kill" && last) std::raise(SIGKILL);
  if (name == "leave" && last) std::_Exit(0);
  if (name == "stop in a node") {
    const auto node = all.split(all.rank() / 2, all.rank(), "gradients in the node");
    all.set_deadline(20);  // the other node does not speak first
    if (last) std::raise(SIGSTOP);
    node->describe_next("gradients of blocks.3");
    node->barrier(*stream);
    return stream->record().wait();
  }
  if (name == "mismatch" && last) {
    all.all_gather_text("I am elsewhere");
    return;
  }
  if (name == "disagree") all.agree(!last, "the disk is full", ExitCode::storage);
  if (name == "hang") {
    WatchdogOptions options;
    options.rank = all.rank();
    options.host = all.host(all.rank());
    options.operation = [&] { return world.running_operations(); };
    options.poll_seconds = 0.1;
    Watchdog watchdog(options);
    all.set_deadline(0);
    watchdog.enter("forward", last ? 1 : 60);
    if (last)
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    all.barrier(*stream);
    return stream->record().wait();
  }
  for (int i = 0; i < 3; ++i) all.barrier(*stream);
  stream->record().wait();
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>(World::start({.deadline_seconds = 20, .shared_memory = argc == 2}));
    fault(*world, argv[1]);
    world->finish();
    return 0;
  } catch (const Error& error) {
    const std::string line = text("dmuon: rank ", world ? world->rank() : 0, ": ", error.what());
    std::fprintf(stderr, "%s\n", line.c_str());
    if (world) world->abort(error.exit_code());
    return static_cast<int>(error.exit_code());
  }
}
