// Runs a solver in a child process: one that crashes, prints or does not come back costs a plan, not the job.
#pragma once

#include <memory>

#include "dmuon/plan/milp_solver.h"

namespace dmuon {

// Solves in a fork of this process, which gets 1.5 times the limit (0.1 to 1e6 s) and two seconds before it is
// killed, dies with the thread that waits for it, and has none of this process's files open. MilpStatus::none with a
// message where the child dies; what the solver throws is thrown here as a ConfigError. May be called from any thread.
std::unique_ptr<MilpSolver> make_isolated_solver(std::unique_ptr<MilpSolver> solver);

}  // namespace dmuon
