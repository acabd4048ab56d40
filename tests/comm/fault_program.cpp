// One fault per run, for test_faults.cpp: fault_program FAULT. Ends as a tool's main should.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/watchdog.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"

using namespace dmuon;

namespace {

void fault(World& world, const std::string& name) {
  Communicator& all = world.communicator();
  const auto stream = make_worker_stream("comm");
  all.set_deadline(3);
  all.barrier(*stream);
  stream->record().wait();
  const bool last = all.rank() == all.size() - 1;
  if (name == "throw" && last) throw DataError("shard train_000003.bin: 12 bytes are missing; fetch it again");
  if (name == "stop" && last) std::raise(SIGSTOP);
  if (name == "kill" && last) std::raise(SIGKILL);
  if (name == "leave" && last) std::_Exit(0);
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

int main(int, char** argv) {
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>(World::start({.deadline_seconds = 20}));
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
