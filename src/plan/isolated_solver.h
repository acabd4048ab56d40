// Runs a solver in a child process: one that crashes, prints or does not come back costs a plan, not the job.
#pragma once

#include <memory>

#include "dmuon/plan/milp_solver.h"

namespace dmuon {

// Solves in a fork of this process, which gets `grace` times the limit before it is killed. MilpStatus::none with a
// message where the child dies; what the solver throws is thrown here as a ConfigError. May be called from any thread.
std::unique_ptr<MilpSolver> make_isolated_solver(std::unique_ptr<MilpSolver> solver);

}  // namespace dmuon
