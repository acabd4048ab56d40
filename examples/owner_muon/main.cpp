// Owner-Muon for tensors of your own, without dmuon's models or trainer. Each matrix lies whole in the slot of one rank:
// a reduce-scatter brings it the gradients of all ranks, its owner alone keeps the momentum and orthogonalises, and an
// all-gather publishes the result.  Run it alone or as: mpirun -np 3 owner_muon
#include <cmath>
#include <cstdio>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/world.h"
#include "dmuon/optim/muon.h"
#include "dmuon/plan/plan.h"

using namespace dmuon;

// The toy problem: minimise ||W - T||^2 / 2 over all matrices. Element i of matrix t is known to rank i % ranks only, as if
// each rank saw its share of the data: the gradients of all ranks add up to the whole one.
double target(int t, int64_t i) { return std::sin(12.9898 * static_cast<double>(i + 1) + 78.233 * t); }

int main() try {
  World world = World::start();
  Communicator& ranks = world.communicator();
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream& stream = backend->compute_stream();

  // Who owns what: longest processing time first on the rule's own cost.
  MuonOptions options = muon_options("keller");
  const std::unique_ptr<UpdateRule> muon = make_muon(options);
  std::vector<PlanTensor> tensors;
  for (const Shape& shape : {Shape{24, 16}, Shape{16, 40}, Shape{32, 32}, Shape{7, 5}})
    tensors.push_back({"matrix" + std::to_string(tensors.size()), shape, 0, true, muon->flops(shape)});
  const Plan plan = make_plan(tensors, 1, {.slots = ranks.size()});
  const UnitLayout& unit = plan.units[0];

  // One buffer of values and one of gradients; owned matrices are views into this rank's slot.
  const int64_t slot_begin = unit.cuts[ranks.rank()], slot_elements = unit.cuts[ranks.rank() + 1] - slot_begin;
  const Tensor values = backend->allocate(Shape{unit.elements}, DType::float32, MemoryCategory::parameters, "values");
  const Tensor gradients = backend->allocate(Shape{unit.elements}, DType::float32, MemoryCategory::gradients, "gradients");
  const Tensor slot = backend->allocate(Shape{slot_elements}, DType::float32, MemoryCategory::gradients, "slot");
  backend->zero(stream, values);
  std::vector<UpdateItem> owned;
  for (const Piece& piece : plan.pieces(ranks.rank())) {
    const PlanTensor& tensor = tensors[piece.tensor];
    UpdateItem item{tensor.name,
                    values.flat(piece.offset, piece.count).reshape(tensor.shape),
                    slot.flat(piece.offset - slot_begin, piece.count).reshape(tensor.shape),
                    {}};
    item.state.push_back(backend->allocate(tensor.shape, DType::float32, MemoryCategory::optimizer_state, "momentum"));
    backend->zero(stream, item.state[0]);
    owned.push_back(item);
  }

  double distance = 0.0, first_distance = 0.0;
  for (int64_t step = 1; step <= 60; ++step) {
    const std::vector<double> weights = to_doubles(*backend, values);
    std::vector<double> gradient(weights.size(), 0.0);
    distance = 0.0;
    for (const UnitLayout::Entry& entry : unit.entries)
      for (int64_t i = 0; i < entry.elements; ++i) {
        const double difference = weights[entry.offset + i] - target(entry.tensor, i);
        distance += difference * difference;
        if (i % ranks.size() == ranks.rank()) gradient[entry.offset + i] = difference;
      }
    if (step == 1) first_distance = distance;
    from_doubles(*backend, gradient, gradients);

    ranks.reduce_scatter_v(stream, gradients, unit.cuts, slot, false);
    muon->prepare(*backend, stream, {.step = step, .learning_rate = 0.4 * (1.0 - (step - 1) / 60.0), .gradient_scale = 1.0});
    muon->global(*backend, stream, owned);
    ranks.all_gather_v(stream, values, unit.cuts);
    if (ranks.rank() == 0 && step % 10 == 0) std::printf("step %2d  squared distance %.4f\n", static_cast<int>(step), distance);
  }
  world.finish();
  return distance < 0.1 * first_distance ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "owner_muon: %s\n", error.what());
  return static_cast<int>(error.exit_code());
}
