// The CUDA backend: memory and streams of one device, and enqueue(), the one place every kernel passes through.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/cuda_stream.h"
#include "dmuon/backend/backend.h"

namespace dmuon::cuda {

class CudaBackend;

// What every kernel family has: the backend it works for.
class Family {
 protected:
  explicit Family(CudaBackend& backend) : backend_(backend) {}
  CudaBackend& backend_;
};

class Matrix final : public MatrixKernels, Family {
 public:
  explicit Matrix(CudaBackend& backend) : Family(backend) {}
  void multiply(Stream& stream, const Multiply& arguments) override;
  void batched_product(Stream& stream, const BatchedProduct& arguments) override;
  void column_sum(Stream& stream, const ColumnSum& arguments) override;
};

class Attention final : public AttentionKernels, Family {
 public:
  explicit Attention(CudaBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const AttentionForward& arguments) override;
  void backward(Stream& stream, const AttentionBackward& arguments) override;
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

class Optimizer final : public OptimizerKernels, Family {
 public:
  explicit Optimizer(CudaBackend& backend) : Family(backend) {}
  void adamw(Stream& stream, const AdamWPass& arguments) override;
  void sgd(Stream& stream, const SgdPass& arguments) override;
  void muon_momentum(Stream& stream, const MuonMomentum& arguments) override;
  void muon_apply(Stream& stream, const MuonApply& arguments) override;
  void convert(Stream& stream, const Convert& arguments) override;
  void square_sums(Stream& stream, const SquareSums& arguments) override;
  void sum(Stream& stream, const Sum& arguments) override;
  void count_non_finite(Stream& stream, const CountNonFinite& arguments) override;
  void normalize(Stream& stream, const Normalize& arguments) override;
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

class CudaBackend final : public Backend {
 public:
  // DeviceError with the reason when the device cannot be used.
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  BackendInformation information() const override;
  Allocator& allocator() override { return *allocator_; }
  bool shape_only() const override { return options_.mode == HostMode::shape_only; }
  HostMode mode() const override { return options_.mode; }
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
  OptimizerKernels& optimizer() override { return optimizer_; }
  SignKernels& signs() override { return signs_; }
  std::map<std::string, KernelCost> costs() const override;
  void reset_costs() override;
  void profile(bool on) override { profiling_ = on; }

  // Queues work of the kernel `name`: start(handle of the stream) launches it. `touched`: every tensor it reads or writes
  // (undefined ones are skipped), so that their memory is not given away before the device is done with it. In a shape-only
  // pass it is only counted.
  template <class Start>
  void enqueue(Stream& stream, const char* name, double flops, const std::vector<Tensor>& touched, const Start& start) {
    count(name, flops);
    if (shape_only()) return;
    const cudaStream_t handle = handle_of(stream);
    for (const Tensor& tensor : touched) use(stream, tensor);
    const double begin = profiling_ ? now(stream) : 0;
    start(handle);
    if (profiling_) add_seconds(name, now(stream) - begin);
  }
  // The stream is about to touch the tensor.
  void use(Stream& stream, const Tensor& tensor);
  // Scratch of one launch, counted as workspace also in a shape-only pass. Undefined for no elements.
  Tensor workspace(int64_t elements, DType dtype, std::string_view label);

  int multiprocessors() const { return multiprocessors_; }
  // Which of the host's devices this is, whatever number the process knows it by: equal texts are one device.
  const std::string& device_identity() const { return device_identity_; }
  // Waits for any stream of this backend look after it from now on, as long as it lives.
  void supervise(std::weak_ptr<Supervisor> supervisor) { supervision_->add(std::move(supervisor)); }

 private:
  void count(const char* name, double flops);
  void add_seconds(const char* name, double seconds);
  double now(Stream& stream);  // when the stream has got here; blocks

  BackendOptions options_;
  int multiprocessors_ = 0;
  std::string device_name_, architecture_, device_identity_;
  std::shared_ptr<Supervision> supervision_ = std::make_shared<Supervision>();
  std::shared_ptr<Allocator> allocator_;
  std::unique_ptr<Stream> compute_stream_;
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
