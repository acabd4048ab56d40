#include "dmuon/core/error.h"
#include "dmuon/plan/milp_solver.h"

namespace dmuon {
namespace {

class NoSolver final : public MilpSolver {
 public:
  std::string name() const override { return "none"; }
  MilpSolution solve(const MilpProblem&, const MilpLimits&) override {
    throw ConfigError("this build has no solver for integer programs; install coinor-libcbc-dev and configure with DMUON_CBC=ON");
  }
};

}  // namespace

std::unique_ptr<MilpSolver> make_cbc_solver() { return std::make_unique<NoSolver>(); }

}  // namespace dmuon
