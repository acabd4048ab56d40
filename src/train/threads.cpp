#include "train/threads.h"

#include <sched.h>

#include <algorithm>

#include "dmuon/core/text.h"

namespace dmuon {

int allowed_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? std::max(1, CPU_COUNT(&mask)) : 1;
}

int threads_for_rank(Communicator& world, int requested) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::string mine(CPU_SETSIZE, '0');
  int count = 0;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) {
        mine[static_cast<size_t>(cpu)] = '1';
        ++count;
      }
  const std::vector<std::string> masks = world.all_gather_text(mine);
  if (requested > 0) return requested;
  int sharing = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.host(rank) != world.host(world.rank())) continue;
    const std::string& other = masks[static_cast<size_t>(rank)];
    bool overlap = rank == world.rank();
    for (size_t cpu = 0; cpu < std::min(mine.size(), other.size()) && !overlap; ++cpu) overlap = mine[cpu] == '1' && other[cpu] == '1';
    sharing += overlap;
  }
  return std::max(1, count / std::max(1, sharing));
}

}  // namespace dmuon
