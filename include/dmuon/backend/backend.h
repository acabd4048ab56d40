// A device: memory, streams, copies and the kernel families. One per process, made once, shared by reference.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/backend/kernels.h"
#include "dmuon/backend/stream.h"
#include "dmuon/core/memory.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

struct BackendInformation {
  std::string device;           // "AMD EPYC 7B13", "NVIDIA H100 80GB HBM3"
  std::string instruction_set;  // "avx2", "avx512", "baseline"; part of every cache key and of exactness contract 1
  std::string gemm;             // "oneDNN 2.6.3", "built-in"
  int threads = 1;
};

// What one kernel has cost so far. FLOPs follow the convention 2 per multiply-add and count what is asked for
// (a causal attention counts half).
struct KernelCost {
  int64_t calls = 0;
  double flops = 0;
  double seconds = 0;  // only while profiling
};

// How a backend runs its kernels; everything but `normal` is a test double of host backends or the shape-only pass.
enum class HostMode : uint8_t {
  normal,
  guarded,     // storage is inaccessible except inside a kernel or host copy
  deferred,    // work is queued and run in random legal order
  shape_only,  // nothing is allocated or computed; sizes, FLOPs and peaks are counted
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu", "reference", "cuda"
  virtual BackendInformation information() const = 0;
  virtual Allocator& allocator() = 0;
  // True in a shape-only pass: tensors have no memory, kernels do nothing but count.
  virtual bool shape_only() const { return false; }
  // Of a test double, for those who hand out memory for its tensors in its allocator's place.
  virtual HostMode mode() const { return HostMode::normal; }

  // True where the model's kernels take activations and parameter values of this type; gradients of parameters, statistics
  // and the optimizer stay float32. A backend that does not compute in a type may still store and send it.
  virtual bool computes_in(DType dtype) const { return dtype == DType::float32; }

  // The stream kernels run on, and further streams for communication.
  virtual Stream& compute_stream() = 0;
  virtual std::unique_ptr<Stream> make_communication_stream(std::string_view name) = 0;

  // Content undefined. `label` appears in an out-of-memory error.
  Tensor allocate(const Shape& shape, DType dtype, MemoryCategory category, std::string_view label);

  // Copies. to_host waits for the stream and blocks; from_host may be followed by changes to `source` at once.
  virtual void copy_to_host(Stream& stream, const Tensor& source, void* destination) = 0;
  virtual void copy_from_host(Stream& stream, const void* source, const Tensor& destination) = 0;
  // Device to device, equal element counts; converts between floating dtypes (round to nearest even).
  virtual void copy(Stream& stream, const Tensor& source, const Tensor& destination) = 0;
  virtual void zero(Stream& stream, const Tensor& destination) = 0;

  virtual MatrixKernels& matrix() = 0;
  virtual AttentionKernels& attention() = 0;
  virtual NormalizationKernels& normalization() = 0;
  virtual ActivationKernels& activation() = 0;
  virtual EmbeddingLossKernels& embedding_loss() = 0;
  virtual OptimizerKernels& optimizer() = 0;
  virtual SignKernels& signs() = 0;

  // Counters by kernel name since the last reset. profile(true) also measures time (waits after every kernel).
  virtual std::map<std::string, KernelCost> costs() const = 0;
  virtual void reset_costs() = 0;
  virtual void profile(bool on) = 0;
};

struct BackendOptions {
  HostMode mode = HostMode::normal;
  int threads = 1;
  uint64_t deferred_seed = 1;
  std::string instruction_set = "auto";  // or "baseline", "avx2", "avx512": refused if the processor lacks it
  int device = 0;                        // of a device backend: its number among those that this process may use
};
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options = {});

// Opens a plug-in (a shared library exporting dmuon_backend_entry, see plugin.h) and makes its backend. DeviceError
// names the file and the cause: missing, not a plug-in, built for another version.
std::unique_ptr<Backend> open_backend_plugin(const std::string& path, const BackendOptions& options = {});

// Convenience for hosts: the whole tensor as doubles (or integers as doubles), and back. Blocks.
std::vector<double> to_doubles(Backend& backend, const Tensor& tensor);
void from_doubles(Backend& backend, std::span<const double> values, const Tensor& tensor);

}  // namespace dmuon
