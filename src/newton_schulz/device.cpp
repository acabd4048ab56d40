#include "dmuon/newton_schulz/device.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "newton_schulz/products.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;  // of the sums of squares, as in MuonMomentum

void check_device(Backend& backend, const NewtonSchulzSpecification& specification) {
  const DeviceUpdates* device = device_updates(backend);
  if (!device)
    throw DeviceError(text("Newton-Schulz in ", name_of(specification.dtype), ": ", backend.name(),
                           " has no such products; choose newton_schulz_dtype = float32 or auto"));
  if (specification.dtype != device->product_dtype())
    throw ConfigError(text("Newton-Schulz without the host computes in ", name_of(device->product_dtype()), " here, found dtype ",
                           name_of(specification.dtype)));
}

}  // namespace

DeviceScratch::DeviceScratch(Backend& backend, int64_t& bytes) : backend_(backend), bytes_(bytes) {
  if (bytes > 0) block_ = backend.allocate(Shape{bytes}, DType::uint8, MemoryCategory::workspace, "scratch of device updates");
}

Tensor DeviceScratch::take(const Shape& shape, DType dtype, std::string_view label) {
  constexpr int64_t alignment = 256;
  const int64_t begin = position_;
  position_ = round_up(begin + shape.elements() * size_of(dtype), alignment);
  largest_ = std::max(largest_, position_);
  if (position_ <= bytes_) return Tensor(block_.storage(), block_.offset() + begin, shape, dtype);
  return backend_.allocate(shape, dtype, MemoryCategory::workspace, label);
}

struct DeviceNewtonSchulz::Parts {
  Backend& backend;
  NewtonSchulzSpecification specification;
  NewtonSchulzSchedule schedule;
  Products products;
  Matrices x, other, results;
  Tensor sums;

  Parts(Backend& on, const NewtonSchulzSpecification& what, int64_t rows, int64_t columns, int64_t count, DeviceScratch* scratch)
      : backend(on),
        specification(what),
        schedule(resolve(what, rows, columns)),
        products(on, schedule, count, static_cast<int>(count), what.dtype, scratch) {
    x = products.results();
    other = products.results();
    results = (schedule.gram ? queue_gram : queue_direct)(products, schedule, x, other, {});
    const Shape of_sums{count, divide_up(rows * columns, chunk)};
    sums = scratch ? scratch->take(of_sums, DType::float64, "Newton-Schulz norms")
                   : on.allocate(of_sums, DType::float64, MemoryCategory::workspace, "Newton-Schulz norms");
  }
};

DeviceNewtonSchulz::DeviceNewtonSchulz(Backend& backend, const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns,
                                       int64_t count, DeviceScratch* scratch) {
  check_device(backend, specification);
  check(specification);
  parts_ = std::make_unique<Parts>(backend, specification, rows, columns, count, scratch);
}
DeviceNewtonSchulz::~DeviceNewtonSchulz() = default;
DeviceNewtonSchulz::DeviceNewtonSchulz(DeviceNewtonSchulz&&) noexcept = default;

void DeviceNewtonSchulz::queue(Stream& stream, std::span<const Tensor> matrices, const Tensor& square_sums) {
  Parts& p = *parts_;
  const int64_t chunks = square_sums.size(1);
  for (size_t i = 0; i < p.x.size(); ++i) {
    Normalize normalize;
    normalize.in = matrices[i], normalize.out = p.x[i];
    normalize.square_sums = square_sums.flat(static_cast<int64_t>(i) * chunks, chunks);
    normalize.epsilon_mode = static_cast<int>(p.specification.epsilon_mode);
    normalize.epsilon = p.specification.epsilon, normalize.safety = p.specification.safety;
    p.backend.optimizer().normalize(stream, normalize);
  }
  p.products.queue(stream);
  for (size_t i = 0; i < p.x.size(); ++i)
    p.backend.optimizer().square_sums(stream, {p.results[i], result_square_sums(static_cast<int64_t>(i)), chunk});
}

const std::vector<Tensor>& DeviceNewtonSchulz::results() const { return parts_->results; }

Tensor DeviceNewtonSchulz::result_square_sums(int64_t i) const {
  const int64_t chunks = parts_->sums.size(1);
  return parts_->sums.flat(i * chunks, chunks);
}

double DeviceNewtonSchulz::guard_limit() const {
  return gram() ? guard_factor * static_cast<double>(parts_->schedule.short_side) : std::numeric_limits<double>::max();
}

bool DeviceNewtonSchulz::gram() const { return parts_->schedule.gram; }

std::vector<Tensor> DeviceNewtonSchulz::tensors() const {
  std::vector<Tensor> all = parts_->products.touched();
  all.push_back(parts_->sums);
  return all;
}

int64_t newton_schulz_device_batch(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count,
                                   int64_t workspace_bytes) {
  // Of each matrix: what the products take, and the float32 update that they start from.
  const int64_t each =
      newton_schulz_bytes(specification, rows, columns, specification.dtype, {1, 1}) + rows * columns * size_of(DType::float32);
  return std::clamp<int64_t>(workspace_bytes / each, 1, count);
}

}  // namespace dmuon
