// The ranks of the job. Without a launcher (mpirun, srun with PMI) the world is this process alone and MPI is not even
// initialised, so a single start costs nothing; with a launcher MPI is, with MPI_THREAD_MULTIPLE.
//
//   World world = World::start();
//   Communicator& all = world.communicator();
//   …
//   world.finish();   // all ranks; the communicators split off must be gone
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dmuon/comm/communicator.h"

namespace dmuon {

struct WorldOptions {
  double deadline_seconds = 300;  // of every collective until Communicator::set_deadline; 0: none
  bool shared_memory = true;      // ranks of one host reduce and gather through shared memory, where it can be had
};

class World {
 public:
  // Throws CommunicationError when MPI cannot be started as needed, or when the launcher announces more ranks than MPI
  // reports (the program was built without MPI or against another one than the launcher's).
  static World start(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  // Finishes, unless the stack unwinds from an error: then the process should end soon, which ends the job. A failure
  // while finishing is printed and ends the job.
  ~World();

  Communicator& communicator();
  int rank() const;
  int size() const;
  // This rank's place among, and the number of, the ranks on its host.
  int local_rank() const;
  int local_ranks() const;
  // Distinct host names in the order of their lowest rank.
  const std::vector<std::string>& hosts() const;
  std::string description() const;  // "4 ranks on 2 hosts (Open MPI v4.1.4)", for the banner

  // The collectives running now in this process, for the watchdog; callable from any thread while the world lives.
  std::string running_operations() const;
  // Memory of all its communicators, which no backend's allocator knows: staging, and this rank's part of the buffers
  // through which ranks of one host meet (4.2 MiB for every group that shares memory, as long as the group lives).
  MemoryStatistics memory() const;

  // Waits for all ranks and releases MPI. Throws CommunicationError at the deadline. A second call does nothing.
  void finish();
  // Flushes output and ends the whole job with this exit code.
  [[noreturn]] void abort(ExitCode code);

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dmuon
