// Comparisons on a device with DeviceUpdates, for the benchmarks `device-update`, `newton-schulz --device` and `device-bars`.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/device_updates.h"
#include "dmuon/optim/muon.h"
#include "support.h"

namespace dmuon::bench {

// Times of work of this project beside the library's, by events of the device. Both are recorded once and replayed. Where the library
// can be called in several ways, each is compared with the own work, and the one that was fastest beside it is told.
struct DeviceRatio {
  std::string work, form, library_form;
  double flops = 0;  // of the own work
  Comparison result;
};

class DeviceComparisons {
 public:
  // DeviceError for a backend without DeviceUpdates.
  DeviceComparisons(const Arguments& arguments, Backend& backend);

  // X X^T of an n x k matrix in float16: every form of the kernel, and if `library` those of the library, against the
  // full product.
  std::vector<DeviceRatio> symmetric(int64_t n, int64_t k, bool library = true);
  // `count` matrices of a shape: normalised and orthogonalised as one recorded batch, against the direct form.
  DeviceRatio orthogonalization(const NewtonSchulzSpecification& specification, const Shape& shape, int64_t count);
  // A whole Muon update (momentum, norm, Newton-Schulz, guard, apply) of matrices of these shapes, tuned first.
  DeviceRatio update(const std::vector<Shape>& shapes);

 private:
  // `queue` touches `tensors` only.
  struct LibraryWork {
    std::string form;
    std::vector<Tensor> tensors;
    std::function<void()> queue;
  };
  // Compares `own` with the recorded library, and takes that into `best` if the library did better than before.
  void take_if_faster(DeviceRatio& best, const std::function<void()>& own, const LibraryWork& library);

  Arguments arguments_;
  Backend& backend_;
  DeviceUpdates* device_;
};

// 2304 x 768, 768 x 768, 3072 x 768 and 768 x 3072 for each of 12 layers; of one narrow layer when `small`.
std::vector<Shape> gpt2_matrices(bool small);

}  // namespace dmuon::bench
