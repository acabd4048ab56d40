// What the optimizer family offers beyond kernels (dmuon/backend/device_updates.h).
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/symmetric_product.h"
#include "backend/cuda/update_graphs.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

Optimizer::Optimizer(CudaBackend& backend)
    : Family(backend), graphs_(std::make_unique<UpdateGraphs>(backend)), forms_(std::make_unique<SymmetricForms>()) {}
Optimizer::~Optimizer() = default;

void Optimizer::replay(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue) {
  graphs_->run(stream, key, tensors, queue);
}

void Optimizer::use_graphs(bool on) { graphs_->use(on); }

void Optimizer::limit_graphs(int64_t bytes) { graphs_->limit(bytes); }

DeviceUpdates::GraphCounts Optimizer::graph_counts() const { return graphs_->counts(); }

std::vector<std::string> Optimizer::symmetric_forms(const SymmetricShape& shape, bool changing_bits) const {
  std::vector<std::string> names;
  if (shape.n < 1 || shape.k < 1 || shape.n > widest_symmetric) return names;
  for (const SymmetricForm& form : dmuon::cuda::symmetric_forms()) names.push_back(form.name());
  if (changing_bits)
    for (const SymmetricForm& form : library_forms(shape)) names.push_back(form.name());
  return names;
}

void Optimizer::use_symmetric_form(const SymmetricShape& shape, const std::string& form) {
  for (const SymmetricForm& each : dmuon::cuda::symmetric_forms())
    if (each.name() == form) return forms_->choose(shape, each);
  for (const SymmetricForm& each : library_forms(shape))
    if (each.name() == form) return forms_->choose(shape, each);
  throw DeviceError(text("no form \"", form, "\" of the symmetric product; there are ", join(symmetric_forms(shape, true), ", ")));
}

}  // namespace dmuon::cuda
