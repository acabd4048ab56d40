// What the environment says about how this process was started.
#pragma once

#include <functional>
#include <string>

namespace dmuon {

struct Launcher {
  bool present = false;
  int ranks = 0;         // announced; 0: not said
  std::string variable;  // that said so, "OMPI_COMM_WORLD_SIZE=4"
};

// `get` is getenv, or a test's own. Knows Open MPI's mpirun, PMI (MPICH, Intel MPI, srun --mpi=pmi2) and PMIx.
// SLURM_NTASKS alone says nothing: every process of a batch script has it.
Launcher find_launcher(const std::function<const char*(const char*)>& get);

}  // namespace dmuon
