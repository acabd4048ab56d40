#include "comm/mpi/mpi_session.h"

namespace dmuon {

std::shared_ptr<PointToPoint> start_mpi() {
  throw CommunicationError(
      "a launcher started this program, but dmuon was built without MPI; install openmpi-bin and libopenmpi-dev and configure with "
      "-DDMUON_MPI=ON, or start the program without mpirun");
}

void finish_mpi() {}

std::string mpi_description() { return "none (built without MPI)"; }

}  // namespace dmuon
