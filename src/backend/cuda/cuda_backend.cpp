#include "backend/cuda/cuda_backend.h"

#include <chrono>
#include <cstring>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_allocator.h"
#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

CudaBackend::CudaBackend(const BackendOptions& options) : options_(options) {
  CudaAllocatorOptions memory;
  memory.exact = options.mode == HostMode::guarded;
  if (shape_only()) {
    device_.name = "none (shapes only)";
    allocator_ = std::make_shared<CudaAllocator>(make_counting_source(), nullptr, memory, surroundings_.supervision);
    compute_stream_ = make_inline_stream();
    return;
  }
  device_ = open_device(options.device);
  staging_ = std::make_unique<PinnedStaging>(surroundings_.supervision);
  // The allocator knows the stream, and the stream tells it of its end.
  auto compute =
      std::make_unique<CudaStream>("compute", false, surroundings_, [this](cudaStream_t handle) { allocator_->stream_closed(handle); });
  allocator_ = std::make_shared<CudaAllocator>(make_device_source(device_.index), compute->handle(), memory, surroundings_.supervision);
  compute_stream_ = std::move(compute);
}

CudaBackend::~CudaBackend() = default;

const void* CudaBackend::linked_library() {
  static const char here = 0;
  return &here;
}

BackendInformation CudaBackend::information() const {
  // Part of the key under which measurements are kept: a new driver may change them.
  const std::string libraries = text("cuBLAS ", cublas_lt_version(), ", CUDA ", version_text(CUDART_VERSION));
  if (shape_only()) return {device_.name, "", libraries, 1};
  return {device_.name, device_.architecture(), text(libraries, ", driver ", version_text(device_.driver)), 1};
}

DeviceMemory CudaBackend::memory() const {
  const BlockStatistics blocks = allocator_->blocks();
  const auto [free, total] = shape_only() ? std::pair<int64_t, int64_t>{0, 0} : allocator_->free_and_total();
  return {blocks.in_use, blocks.peak_in_use, blocks.reserved, blocks.peak_reserved, free, total};
}

Allocator& CudaBackend::allocator() { return *allocator_; }

Stream& CudaBackend::compute_stream() { return *compute_stream_; }

std::unique_ptr<Stream> CudaBackend::make_communication_stream(std::string_view name) {
  if (shape_only()) return make_inline_stream();
  auto stream = std::make_unique<CudaStream>(std::string(name), true, surroundings_,
                                             [allocator = allocator_](cudaStream_t handle) { allocator->stream_closed(handle); });
  allocator_->stream_opened(stream->handle());
  return stream;
}

void CudaBackend::use(Stream& stream, const Tensor& tensor) {
  if (!shape_only() && tensor.defined()) allocator_->touch(handle_of(stream), tensor);
}

void CudaBackend::prepare(cudaStream_t stream, const char* name, const std::vector<Tensor>& touched) {
  if (std::this_thread::get_id() != maker_) check(cudaSetDevice(device_.index), "the device of another thread");
  surroundings_.recent->add(name, touched);
  for (const Tensor& tensor : touched)
    if (tensor.defined()) allocator_->touch(stream, tensor);
}

void CudaBackend::throw_with_shapes(const DeviceError& error, const char* name, const std::vector<Tensor>& touched) const {
  std::vector<std::string> shapes;
  for (const Tensor& tensor : touched)
    if (tensor.defined()) shapes.push_back(tensor.to_string());
  // An earlier kernel may have failed: the device says so to whoever calls it next.
  throw DeviceError(
      text(name, " of ", join(shapes, ", "), ": ", error.what(), "; queued last, the latest first: ", surroundings_.recent->describe()));
}

void CudaBackend::begin_capture(std::vector<Tensor>& kept) {
  kept_ = &kept;
  allocator_->set_capturing(true);
}

void CudaBackend::end_capture() {
  kept_ = nullptr;
  allocator_->set_capturing(false);
}

void CudaBackend::copy_to_host(Stream& stream, const Tensor& source, void* destination) {
  if (shape_only() && source.bytes() > 0) std::memset(destination, 0, static_cast<size_t>(source.bytes()));
  enqueue(stream, "copy_to_host", 0, {source},
          [&](cudaStream_t handle) { staging_->download(handle, source.raw(), destination, source.bytes()); });
  stream.synchronize();
}

void CudaBackend::copy_from_host(Stream& stream, const void* source, const Tensor& destination) {
  enqueue(stream, "copy_from_host", 0, {destination},
          [&](cudaStream_t handle) { staging_->upload(handle, source, destination.raw(), destination.bytes()); });
}

void CudaBackend::copy(Stream& stream, const Tensor& source, const Tensor& destination) {
  const bool convertible = is_floating(source.dtype()) && is_floating(destination.dtype());
  if (source.elements() != destination.elements() || (source.dtype() != destination.dtype() && !convertible))
    throw ShapeError(
        text("copy needs equal element counts and floating or equal dtypes: ", source.to_string(), " to ", destination.to_string()));
  if (source.dtype() != destination.dtype()) return optimizer().convert(stream, {source, destination});
  enqueue(stream, "copy", 0, {source, destination}, [&](cudaStream_t handle) {
    check(cudaMemcpyAsync(destination.raw(), source.raw(), static_cast<size_t>(source.bytes()), cudaMemcpyDeviceToDevice, handle),
          text("copy of ", source.to_string()));
  });
}

void CudaBackend::zero(Stream& stream, const Tensor& destination) {
  enqueue(stream, "zero", 0, {destination}, [&](cudaStream_t handle) {
    check(cudaMemsetAsync(destination.raw(), 0, static_cast<size_t>(destination.bytes()), handle),
          text("zeros of ", destination.to_string()));
  });
}

Tensor CudaBackend::workspace(int64_t elements, DType dtype, std::string_view label) {
  if (elements <= 0) return {};
  Tensor tensor = allocate(Shape{elements}, dtype, MemoryCategory::workspace, label);
  if (kept_ != nullptr) kept_->push_back(tensor);
  return tensor;
}

std::map<std::string, KernelCost> CudaBackend::costs() const {
  const std::lock_guard lock(costs_mutex_);
  return costs_;
}

void CudaBackend::reset_costs() {
  const std::lock_guard lock(costs_mutex_);
  costs_.clear();
}

void CudaBackend::count(const char* name, double flops) {
  const std::lock_guard lock(costs_mutex_);
  KernelCost& cost = costs_[name];
  ++cost.calls;
  cost.flops += flops;
}

void CudaBackend::add_costs(const std::map<std::string, KernelCost>& costs) {
  const std::lock_guard lock(costs_mutex_);
  for (const auto& [name, more] : costs) {
    KernelCost& cost = costs_[name];
    cost.calls += more.calls;
    cost.flops += more.flops;
  }
}

void CudaBackend::add_seconds(const char* name, double seconds) {
  const std::lock_guard lock(costs_mutex_);
  costs_[name].seconds += seconds;
}

double CudaBackend::now(Stream& stream) {
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace dmuon::cuda
