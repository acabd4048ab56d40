// The CUDA backend: memory and streams of one device, and enqueue(), the one place every kernel passes through.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/pinned_staging.h"
#include "dmuon/backend/device.h"
#include "dmuon/backend/device_updates.h"
#include "dmuon/backend/product_epilogues.h"
#include "dmuon/core/error.h"

namespace dmuon::cuda {

class CudaBackend;

// What every kernel family has: the backend it works for.
class Family {
 protected:
  explicit Family(CudaBackend& backend) : backend_(backend) {}
  CudaBackend& backend_;
};

class CublasLt;
struct ProductKey;

class Matrix final : public MatrixKernels, public ProductEpilogues, Family {
 public:
  explicit Matrix(CudaBackend& backend);
  ~Matrix() override;
  void multiply(Stream& stream, const Multiply& arguments) override;
  void batched_product(Stream& stream, const BatchedProduct& arguments) override;
  void product_sequence(Stream& stream, const ProductSequence& arguments) override;
  void column_sum(Stream& stream, const ColumnSum& arguments) override;
  bool multiply_with_bias_gradient(Stream& stream, const BiasGradientProduct& arguments) override;
  bool multiply_gelu(Stream& stream, const GeluProduct& arguments) override;
  bool multiply_gelu_gradient(Stream& stream, const GeluGradientProduct& arguments) override;

 private:
  CublasLt& library();
  // Whether the library has an algorithm, asked outside enqueue(). A shape-only pass does not ask and takes the key's word.
  bool has_algorithm(const ProductKey& key);
  // Scratch of the library's kernels: one per stream and for good, because the kernels of a stream follow one another. It is
  // counted before the first product, in a shape-only pass too.
  Tensor library_workspace(Stream& stream);
  // The matrices [first, end) of a batch, which have one key and factor, as full products, or in block rows up to the diagonal
  // (`block_rows` > 0, for symmetric results); with the diagonal added and the result mirrored.
  void library_products(const ProductKey& key, const BatchedProduct& product, size_t first, size_t end, int64_t block_rows,
                        const Tensor& table, const Tensor& workspace, cudaStream_t stream);
  // Of each result the part whose element offsets in the operands are given; `key` describes the part.
  struct PartOffsets {
    int64_t a = 0, b = 0, d = 0;
  };
  void products_of_part(ProductKey key, const BatchedProduct& product, size_t first, size_t end, const PartOffsets& offsets,
                        const Tensor& table, const Tensor& workspace, cudaStream_t stream);

  std::mutex mutex_;
  std::unique_ptr<CublasLt> library_;
  std::map<const Stream*, Tensor> workspaces_;
};

class Attention final : public AttentionKernels, Family {
 public:
  explicit Attention(CudaBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const AttentionForward& arguments) override;
  void backward(Stream& stream, const AttentionBackward& arguments) override;
  void rotary_forward(Stream& stream, const RotaryForward& arguments) override;
  void rotary_backward(Stream& stream, const RotaryBackward& arguments) override;
};

class Normalization final : public NormalizationKernels, Family {
 public:
  explicit Normalization(CudaBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const NormalizationForward& arguments) override;
  void backward(Stream& stream, const NormalizationBackward& arguments) override;
};

class Activation final : public ActivationKernels, Family {
 public:
  explicit Activation(CudaBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const ActivationForward& arguments) override;
  void backward(Stream& stream, const ActivationBackward& arguments) override;
  void swiglu_forward(Stream& stream, const SwiGluForward& arguments) override;
  void swiglu_backward(Stream& stream, const SwiGluBackward& arguments) override;
  void scaled_add(Stream& stream, const ScaledAdd& arguments) override;
  void dropout(Stream& stream, const ApplyDropout& arguments) override;
};

class EmbeddingLoss final : public EmbeddingLossKernels, Family {
 public:
  explicit EmbeddingLoss(CudaBackend& backend) : Family(backend) {}
  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override;
  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override;
  void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) override;
};

class UpdateGraphs;
class SymmetricForms;

class Optimizer final : public OptimizerKernels, public DeviceUpdates, Family {
 public:
  explicit Optimizer(CudaBackend& backend);
  ~Optimizer() override;
  void adamw(Stream& stream, const AdamWPass& arguments) override;
  void sgd(Stream& stream, const SgdPass& arguments) override;
  void muon_momentum(Stream& stream, const MuonMomentum& arguments) override;
  void muon_apply(Stream& stream, const MuonApply& arguments) override;
  void convert(Stream& stream, const Convert& arguments) override;
  void square_sums(Stream& stream, const SquareSums& arguments) override;
  void sum(Stream& stream, const Sum& arguments) override;
  void count_non_finite(Stream& stream, const CountNonFinite& arguments) override;
  void normalize(Stream& stream, const Normalize& arguments) override;

  DType product_dtype() const override { return DType::float16; }
  void guard(Stream& stream, const GuardUpdate& arguments) override;
  void replay(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue) override;
  void use_graphs(bool on) override;
  void limit_graphs(int64_t bytes) override;
  GraphCounts graph_counts() const override;
  std::vector<std::string> symmetric_forms(const SymmetricShape& shape, bool changing_bits) const override;
  void use_symmetric_form(const SymmetricShape& shape, const std::string& form) override;
  const SymmetricForms& forms() const { return *forms_; }

 private:
  std::unique_ptr<UpdateGraphs> graphs_;
  std::unique_ptr<SymmetricForms> forms_;  // that were chosen by measurement
};

class Signs final : public SignKernels, Family {
 public:
  explicit Signs(CudaBackend& backend) : Family(backend) {}
  void pack(Stream& stream, const PackSigns& arguments) override;
  void vote(Stream& stream, const VoteSigns& arguments) override;
  void count(Stream& stream, const CountSigns& arguments) override;
  void vote_counts(Stream& stream, const VoteCounts& arguments) override;
  void expand(Stream& stream, const ExpandSigns& arguments) override;
  void threshold(Stream& stream, const ThresholdSigns& arguments) override;
  void apply(Stream& stream, const ApplySigns& arguments) override;
  void unpack(Stream& stream, const UnpackSigns& arguments) override;
};

class CudaAllocator;

class CudaBackend final : public Backend, public DeviceBackend {
 public:
  // DeviceError with the reason when the device cannot be used.
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  BackendInformation information() const override;
  std::string identity() const override { return device_.identity; }
  std::string summary() const override { return device_.summary(); }
  DeviceMemory memory() const override;
  Allocator& allocator() override;
  bool shape_only() const override { return options_.mode == HostMode::shape_only; }
  HostMode mode() const override { return options_.mode; }
  bool computes_in(DType dtype) const override { return dtype == DType::float32 || dtype == DType::bfloat16; }
  Stream& compute_stream() override;
  std::unique_ptr<Stream> make_communication_stream(std::string_view name) override;
  void copy_to_host(Stream& stream, const Tensor& source, void* destination) override;
  void copy_from_host(Stream& stream, const void* source, const Tensor& destination) override;
  void copy(Stream& stream, const Tensor& source, const Tensor& destination) override;
  void zero(Stream& stream, const Tensor& destination) override;
  MatrixKernels& matrix() override { return matrix_; }
  AttentionKernels& attention() override { return attention_; }
  NormalizationKernels& normalization() override { return normalization_; }
  ActivationKernels& activation() override { return activation_; }
  EmbeddingLossKernels& embedding_loss() override { return embedding_loss_; }
  Optimizer& optimizer() override { return optimizer_; }
  SignKernels& signs() override { return signs_; }
  std::map<std::string, KernelCost> costs() const override;
  void reset_costs() override;
  void profile(bool on) override { profiling_ = on; }
  bool profiling() const { return profiling_; }
  // Counts once more what a recorded piece of work has cost.
  void add_costs(const std::map<std::string, KernelCost>& costs);

  // Queues work of the kernel `name`: start(handle of the stream) launches it. `touched`: every tensor it reads or writes
  // (undefined ones are skipped), so that their memory is not given away before the device is done with it. In a shape-only
  // pass it is only counted.
  template <class Start>
  void enqueue(Stream& stream, const char* name, double flops, const std::vector<Tensor>& touched, const Start& start) {
    count(name, flops);
    if (shape_only()) return;
    const cudaStream_t handle = handle_of(stream);
    prepare(handle, name, touched);
    const double begin = profiling_ ? now(stream) : 0;
    try {
      start(handle);
    } catch (const DeviceError& error) {
      throw_with_shapes(error, name, touched);
    }
    if (profiling_) add_seconds(name, now(stream) - begin);
  }
  // Scratch of one launch, counted as workspace also in a shape-only pass. Undefined for no elements.
  Tensor workspace(int64_t elements, DType dtype, std::string_view label);

  // While work is captured into a graph: what workspace() gives out stays allocated in `kept` for as long as the graph may run,
  // and no memory is waited for. Tensors that the graph is to touch must have been touched by the stream before. One capture at
  // a time; capture in cudaStreamCaptureModeRelaxed, because fresh memory may be needed.
  void begin_capture(std::vector<Tensor>& kept);
  void end_capture();
  // The stream is about to touch the tensor, outside enqueue().
  void use(Stream& stream, const Tensor& tensor);

  int multiprocessors() const { return device_.multiprocessors; }
  const DeviceDescription& device() const { return device_; }
  // Waits for any stream of this backend look after it from now on, as long as it lives.
  void supervise(std::weak_ptr<Supervisor> supervisor) { surroundings_.supervision->add(std::move(supervisor)); }
  // An address inside the library whose code made this backend, and one inside the library that the caller is linked with. A process
  // may have opened two builds of this plug-in, which look alike and share nothing.
  const void* library() const { return library_; }
  static const void* linked_library();

 private:
  void count(const char* name, double flops);
  void add_seconds(const char* name, double seconds);
  double now(Stream& stream);  // when the stream has got here; blocks
  // Makes the device current for this thread, and orders the stream behind whatever had the tensors' memory before.
  void prepare(cudaStream_t stream, const char* name, const std::vector<Tensor>& touched);
  [[noreturn]] void throw_with_shapes(const DeviceError& error, const char* name, const std::vector<Tensor>& touched) const;

  const void* library_ = linked_library();
  BackendOptions options_;
  DeviceDescription device_;
  std::thread::id maker_ = std::this_thread::get_id();  // CUDA's current device is a thread's
  StreamSurroundings surroundings_;
  std::unique_ptr<PinnedStaging> staging_;
  std::shared_ptr<CudaAllocator> allocator_;
  std::unique_ptr<Stream> compute_stream_;
  std::vector<Tensor>* kept_ = nullptr;  // of a capture
  std::atomic<bool> profiling_ = false;
  mutable std::mutex costs_mutex_;
  std::map<std::string, KernelCost> costs_;
  Matrix matrix_{*this};
  Attention attention_{*this};
  Normalization normalization_{*this};
  Activation activation_{*this};
  EmbeddingLoss embedding_loss_{*this};
  Optimizer optimizer_{*this};
  Signs signs_{*this};
};

}  // namespace dmuon::cuda
