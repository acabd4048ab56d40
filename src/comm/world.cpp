#include "dmuon/comm/world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "comm/launcher.h"
#include "comm/mpi/mpi_session.h"
#include "comm/peer_communicator.h"
#include "comm/shared/connect.h"
#include "dmuon/core/text.h"

namespace dmuon {

struct World::State {
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  std::shared_ptr<Allocator> staging = make_host_allocator();
  std::vector<std::string> hosts;
  int local_rank = 0;
  int local_ranks = 1;
  bool mpi = false;
  bool finished = false;
  int unwinding = std::uncaught_exceptions();
};

namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

}  // namespace

World World::start(const WorldOptions& options) {
  auto state = std::make_unique<State>();
  const Launcher launcher = find_launcher([](const char* name) -> const char* { return std::getenv(name); });
  const std::string host = host_name();
  std::vector<std::string> all_hosts{host};
  if (!launcher.present) {
    state->communicator = make_self_communicator();
  } else {
    const std::shared_ptr<PointToPoint> transport = start_mpi();
    state->mpi = true;
    if (launcher.ranks > 1 && transport->size() == 1)
      throw CommunicationError(text("the launcher announces several ranks (", launcher.variable, ") but ", mpi_description(),
                                    " reports a world of one: ", launcher.ranks,
                                    " independent copies would train over each other. "
                                    "The launcher belongs to another MPI than the one dmuon was built with; start dmuon with the "
                                    "mpirun of ",
                                    mpi_description(), ", or unset the variable if this is no parallel job"));
    std::vector<GroupMember> members;
    for (int rank = 0; rank < transport->size(); ++rank) members.push_back({rank, "host not known yet", 0});
    const auto group = std::make_shared<Group>(
        "world", transport, members, GroupServices{state->staging, state->activity, options.shared_memory}, options.deadline_seconds);
    state->communicator = std::make_unique<PeerCommunicator>(group);
    all_hosts = state->communicator->all_gather_text(host);
    for (GroupMember& member : members) {
      member.host = all_hosts[static_cast<size_t>(member.world_rank)];
      member.node = static_cast<int>(std::find(all_hosts.begin(), all_hosts.end(), member.host) - all_hosts.begin());
    }
    group->set_members(std::move(members));
    connect_shared_memory(*group);
  }
  const int rank = state->communicator->rank();
  state->local_ranks = static_cast<int>(std::count(all_hosts.begin(), all_hosts.end(), host));
  state->local_rank = static_cast<int>(std::count(all_hosts.begin(), all_hosts.begin() + rank, host));
  for (const std::string& name : all_hosts)
    if (std::find(state->hosts.begin(), state->hosts.end(), name) == state->hosts.end()) state->hosts.push_back(name);
  return World(std::move(state));
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;

World::~World() {
  if (!state_ || state_->finished || std::uncaught_exceptions() > state_->unwinding) return;
  try {
    finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dmuon: rank %d: %s\n", rank(), error.what());
    abort(ExitCode::communication);
  }
}

Communicator& World::communicator() { return *state_->communicator; }
int World::rank() const { return state_->communicator->rank(); }
int World::size() const { return state_->communicator->size(); }
int World::local_rank() const { return state_->local_rank; }
int World::local_ranks() const { return state_->local_ranks; }
const std::vector<std::string>& World::hosts() const { return state_->hosts; }

std::string World::description() const {
  if (!state_->mpi) return "1 rank (no launcher)";
  return text(size(), size() == 1 ? " rank on " : " ranks on ", hosts().size(), hosts().size() == 1 ? " host (" : " hosts (",
              mpi_description(), ")");
}

std::string World::running_operations() const { return state_->activity->describe(); }
MemoryStatistics World::memory() const { return state_->staging->statistics(); }

void World::finish() {
  if (state_->finished) return;
  if (state_->mpi) {
    // A blocking MPI_Finalize would wait for ever for a rank that is gone; the barrier expires.
    const auto stream = make_inline_stream();
    state_->communicator->barrier(*stream);
    stream->synchronize();
    state_->communicator = nullptr;
    finish_mpi();
    state_->communicator = make_self_communicator();
  }
  state_->finished = true;
}

void World::abort(ExitCode code) {
  state_->communicator->abort(code);
  std::_Exit(static_cast<int>(code));  // not reached; the compiler does not trust virtual functions to not return
}

}  // namespace dmuon
