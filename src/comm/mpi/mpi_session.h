// The MPI library of this process: one file with MPI (mpi_point_to_point.cpp), one without (no_mpi.cpp).
#pragma once

#include <memory>
#include <string>

#include "comm/point_to_point.h"

namespace dmuon {

// Initialises MPI with MPI_THREAD_MULTIPLE and returns the transport among all ranks (on a communicator of our own).
// Sets OMPI_MCA_mpi_yield_when_idle=1 before, unless the user set it: ranks may outnumber cores. Throws
// CommunicationError when MPI cannot give that thread level, or when the build has no MPI.
std::shared_ptr<PointToPoint> start_mpi();
// All ranks must have entered. Releases what start_mpi() made; the transports must be gone. Later calls do nothing.
void finish_mpi();
// "Open MPI v4.1.4", or the remedy where the build has none.
std::string mpi_description();

}  // namespace dmuon
