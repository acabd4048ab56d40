// Votes whose bytes others count on the wire: vote_program TRANSPORT WORDS VOTES
#include <cstdio>
#include <string>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"
#include "dmuon/comm/world.h"

using namespace dmuon;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "vote_program TRANSPORT WORDS VOTES\n");
    return 2;
  }
  World world = World::start();
  Communicator& all = world.communicator();
  const auto backend = make_cpu_backend({.mode = HostMode::normal, .threads = 1});
  const auto stream = make_inline_stream();
  const int64_t words = std::stoll(argv[2]);
  const auto transport = make_vote_transport(*backend, all, vote_transport_from_name(argv[1]), words);
  const Tensor votes = backend->allocate({words}, DType::int64, MemoryCategory::communication, "votes");
  backend->zero(*stream, votes);
  for (int64_t step = 0; step < std::stoll(argv[3]); ++step) transport->vote(*stream, votes, 0, step);
  stream->record().wait();
  world.finish();
}
