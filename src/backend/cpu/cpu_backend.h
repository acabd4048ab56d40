// The CPU backend: float32 kernels over the hot loops of simd/, matrix products through oneDNN where it was built in.
#pragma once

#include <memory>

#include "backend/cpu/library_gemm.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/simd/table.h"
#include "backend/host_backend.h"

namespace dmuon::cpu {

class CpuBackend;

// What every kernel family has: the backend it launches through.
class Family {
 protected:
  explicit Family(CpuBackend& backend) : backend_(backend) {}
  CpuBackend& backend_;
};

class Matrix final : public MatrixKernels, Family {
 public:
  explicit Matrix(CpuBackend& backend) : Family(backend) {}
  void multiply(Stream& stream, const Multiply& arguments) override;
  void batched_product(Stream& stream, const BatchedProduct& arguments) override;
  void product_sequence(Stream& stream, const ProductSequence& arguments) override;
  void column_sum(Stream& stream, const ColumnSum& arguments) override;

 private:
  void multiply_few_rows(Stream& stream, const Multiply& arguments);
};

class Attention final : public AttentionKernels, Family {
 public:
  explicit Attention(CpuBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const AttentionForward& arguments) override;
  void backward(Stream& stream, const AttentionBackward& arguments) override;
  void rotary_forward(Stream& stream, const RotaryForward& arguments) override;
  void rotary_backward(Stream& stream, const RotaryBackward& arguments) override;
};

class Normalization final : public NormalizationKernels, Family {
 public:
  explicit Normalization(CpuBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const NormalizationForward& arguments) override;
  void backward(Stream& stream, const NormalizationBackward& arguments) override;
};

class Activation final : public ActivationKernels, Family {
 public:
  explicit Activation(CpuBackend& backend) : Family(backend) {}
  void forward(Stream& stream, const ActivationForward& arguments) override;
  void backward(Stream& stream, const ActivationBackward& arguments) override;
  void swiglu_forward(Stream& stream, const SwiGluForward& arguments) override;
  void swiglu_backward(Stream& stream, const SwiGluBackward& arguments) override;
  void scaled_add(Stream& stream, const ScaledAdd& arguments) override;
  void dropout(Stream& stream, const ApplyDropout& arguments) override;
};

class EmbeddingLoss final : public EmbeddingLossKernels, Family {
 public:
  explicit EmbeddingLoss(CpuBackend& backend) : Family(backend) {}
  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override;
  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override;
  void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) override;
};

class Optimizer final : public OptimizerKernels, Family {
 public:
  explicit Optimizer(CpuBackend& backend) : Family(backend) {}
  void adamw(Stream& stream, const AdamWPass& arguments) override;
  void sgd(Stream& stream, const SgdPass& arguments) override;
  void muon_momentum(Stream& stream, const MuonMomentum& arguments) override;
  void muon_apply(Stream& stream, const MuonApply& arguments) override;
  void convert(Stream& stream, const Convert& arguments) override;
  void square_sums(Stream& stream, const SquareSums& arguments) override;
  void sum(Stream& stream, const Sum& arguments) override;
  void count_non_finite(Stream& stream, const CountNonFinite& arguments) override;
};

class Signs final : public SignKernels, Family {
 public:
  explicit Signs(CpuBackend& backend) : Family(backend) {}
  void pack(Stream& stream, const PackSigns& arguments) override;
  void vote(Stream& stream, const VoteSigns& arguments) override;
  void count(Stream& stream, const CountSigns& arguments) override;
  void vote_counts(Stream& stream, const VoteCounts& arguments) override;
  void expand(Stream& stream, const ExpandSigns& arguments) override;
  void threshold(Stream& stream, const ThresholdSigns& arguments) override;
  void apply(Stream& stream, const ApplySigns& arguments) override;
  void unpack(Stream& stream, const UnpackSigns& arguments) override;
};

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(const BackendOptions& options);
  std::string name() const override { return "cpu"; }
  BackendInformation information() const override;
  MatrixKernels& matrix() override { return matrix_; }
  AttentionKernels& attention() override { return attention_; }
  NormalizationKernels& normalization() override { return normalization_; }
  ActivationKernels& activation() override { return activation_; }
  EmbeddingLossKernels& embedding_loss() override { return embedding_loss_; }
  OptimizerKernels& optimizer() override { return optimizer_; }
  SignKernels& signs() override { return signs_; }

  const simd::Table& simd() const { return simd_; }
  // Null when built without oneDNN, or when the options ask for a narrower instruction set than the library would use.
  LibraryGemm* library_gemm() { return library_gemm_.get(); }
  // Only a communication worker must stay out of parallel regions; deferred work runs on the thread that waits.
  Team team(const Stream& stream) const { return {options().threads, stream.runs_inline() || options().mode == HostMode::deferred}; }
  // Scratch of one launch, in floats, counted as workspace also in a shape-only pass. Undefined for 0.
  Tensor workspace(int64_t floats, const char* label);

 private:
  const simd::Table& simd_;
  std::unique_ptr<LibraryGemm> library_gemm_;
  Matrix matrix_{*this};
  Attention attention_{*this};
  Normalization normalization_{*this};
  Activation activation_{*this};
  EmbeddingLoss embedding_loss_{*this};
  Optimizer optimizer_{*this};
  Signs signs_{*this};
};

// Data of an optional tensor, null when undefined.
inline float* optional_data(const Tensor& tensor) { return tensor.defined() ? tensor.data<float>() : nullptr; }

// The optional second copy of a parameter, float32 or bfloat16.
simd::Published published_of(const Tensor& tensor);

// The mask as the hot loops take it; `elements` of the masked tensor, all sequences together.
simd::Dropout dropout_of(const DropoutMask& mask, int64_t elements);

// Column sums are made of partial sums over fixed blocks of rows, so they don't depend on the threads.
struct RowBlocks {
  explicit RowBlocks(int64_t all_rows);
  int64_t rows, count, size;  // `count` blocks of `size` rows, the last one shorter
  int64_t begin(int64_t block) const { return std::min(rows, block * size); }
  int64_t end(int64_t block) const { return std::min(rows, (block + 1) * size); }
};
// out (+)= partials [blocks, columns] added in order.
void add_partials(const simd::Table& simd, const Team& team, const float* partials, int64_t blocks, bool accumulate, const Tensor& out);

}  // namespace dmuon::cpu
