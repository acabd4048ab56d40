#include "backend/cuda/cuda_backend.h"

#include <chrono>
#include <cstring>
#include <iomanip>

#include "backend/cuda/cuda_allocator.h"
#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

CudaBackend::CudaBackend(const BackendOptions& options) : options_(options) {
  if (shape_only()) {
    device_name_ = "none (shapes only)";
    allocator_ = make_counting_allocator();
    compute_stream_ = make_inline_stream();
    return;
  }
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "no CUDA device can be used");
  check(cudaSetDevice(options.device), text("CUDA device ", options.device, " of ", devices));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, options.device), text("properties of CUDA device ", options.device));
  device_name_ = properties.name;
  architecture_ = text("sm_", properties.major, properties.minor);
  multiprocessors_ = properties.multiProcessorCount;
  device_identity_ = "GPU-";
  for (const char byte : properties.uuid.bytes) device_identity_ += text(std::hex, std::setw(2), std::setfill('0'), byte & 0xff);
  allocator_ = make_cuda_allocator();
  compute_stream_ = std::make_unique<CudaStream>("compute", false, supervision_);
}

CudaBackend::~CudaBackend() = default;

BackendInformation CudaBackend::information() const { return {device_name_, architecture_, "cuBLAS", 1}; }

Stream& CudaBackend::compute_stream() { return *compute_stream_; }

std::unique_ptr<Stream> CudaBackend::make_communication_stream(std::string_view name) {
  if (shape_only()) return make_inline_stream();
  return std::make_unique<CudaStream>(std::string(name), true, supervision_);
}

void CudaBackend::use(Stream&, const Tensor&) {}

void CudaBackend::copy_to_host(Stream& stream, const Tensor& source, void* destination) {
  const auto bytes = static_cast<size_t>(source.bytes());
  if (shape_only() && bytes > 0) std::memset(destination, 0, bytes);
  enqueue(stream, "copy_to_host", 0, {source}, [&](cudaStream_t handle) {
    check(cudaMemcpyAsync(destination, source.raw(), bytes, cudaMemcpyDeviceToHost, handle),
          text("copy of ", source.to_string(), " to the host"));
  });
  stream.synchronize();
}

void CudaBackend::copy_from_host(Stream& stream, const void* source, const Tensor& destination) {
  enqueue(stream, "copy_from_host", 0, {destination}, [&](cudaStream_t handle) {
    check(cudaMemcpyAsync(destination.raw(), source, static_cast<size_t>(destination.bytes()), cudaMemcpyHostToDevice, handle),
          text("copy of ", destination.to_string(), " from the host"));
  });
  if (!shape_only()) stream.synchronize();
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
  return elements > 0 ? allocate(Shape{elements}, dtype, MemoryCategory::workspace, label) : Tensor();
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

void CudaBackend::add_seconds(const char* name, double seconds) {
  const std::lock_guard lock(costs_mutex_);
  costs_[name].seconds += seconds;
}

double CudaBackend::now(Stream& stream) {
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace dmuon::cuda
