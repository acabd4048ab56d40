// The reference backend: every kernel in the plainest form that is certainly right, single-threaded, for float32 and
// float64 tensors, those of the model for bfloat16 too. It is the specification other backends are compared with and, in
// float64, the ground for gradient checks. Arithmetic is in double; a narrower result is rounded once, when it is stored.
#pragma once

#include "backend/host_backend.h"

namespace dmuon::reference {

class Matrix final : public MatrixKernels {
 public:
  explicit Matrix(HostBackend& host) : host_(host) {}
  void multiply(Stream& stream, const Multiply& arguments) override;
  void batched_product(Stream& stream, const BatchedProduct& arguments) override;
  void column_sum(Stream& stream, const ColumnSum& arguments) override;

 private:
  HostBackend& host_;
};

class Attention final : public AttentionKernels {
 public:
  explicit Attention(HostBackend& host) : host_(host) {}
  void forward(Stream& stream, const AttentionForward& arguments) override;
  void backward(Stream& stream, const AttentionBackward& arguments) override;
  void rotary_forward(Stream& stream, const RotaryForward& arguments) override;
  void rotary_backward(Stream& stream, const RotaryBackward& arguments) override;

 private:
  HostBackend& host_;
};

class Normalization final : public NormalizationKernels {
 public:
  explicit Normalization(HostBackend& host) : host_(host) {}
  void forward(Stream& stream, const NormalizationForward& arguments) override;
  void backward(Stream& stream, const NormalizationBackward& arguments) override;

 private:
  HostBackend& host_;
};

class Activation final : public ActivationKernels {
 public:
  explicit Activation(HostBackend& host) : host_(host) {}
  void forward(Stream& stream, const ActivationForward& arguments) override;
  void backward(Stream& stream, const ActivationBackward& arguments) override;
  void swiglu_forward(Stream& stream, const SwiGluForward& arguments) override;
  void swiglu_backward(Stream& stream, const SwiGluBackward& arguments) override;
  void scaled_add(Stream& stream, const ScaledAdd& arguments) override;
  void dropout(Stream& stream, const ApplyDropout& arguments) override;

 private:
  HostBackend& host_;
};

class EmbeddingLoss final : public EmbeddingLossKernels {
 public:
  explicit EmbeddingLoss(HostBackend& host) : host_(host) {}
  void embedding_forward(Stream& stream, const EmbeddingForward& arguments) override;
  void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) override;
  void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) override;

 private:
  HostBackend& host_;
};

class Optimizer final : public OptimizerKernels {
 public:
  explicit Optimizer(HostBackend& host) : host_(host) {}
  void adamw(Stream& stream, const AdamWPass& arguments) override;
  void sgd(Stream& stream, const SgdPass& arguments) override;
  void muon_momentum(Stream& stream, const MuonMomentum& arguments) override;
  void muon_apply(Stream& stream, const MuonApply& arguments) override;
  void convert(Stream& stream, const Convert& arguments) override;
  void square_sums(Stream& stream, const SquareSums& arguments) override;
  void sum(Stream& stream, const Sum& arguments) override;
  void count_non_finite(Stream& stream, const CountNonFinite& arguments) override;

 private:
  HostBackend& host_;
};

class Signs final : public SignKernels {
 public:
  explicit Signs(HostBackend& host) : host_(host) {}
  void pack(Stream& stream, const PackSigns& arguments) override;
  void vote(Stream& stream, const VoteSigns& arguments) override;
  void count(Stream& stream, const CountSigns& arguments) override;
  void vote_counts(Stream& stream, const VoteCounts& arguments) override;
  void expand(Stream& stream, const ExpandSigns& arguments) override;
  void threshold(Stream& stream, const ThresholdSigns& arguments) override;
  void apply(Stream& stream, const ApplySigns& arguments) override;
  void unpack(Stream& stream, const UnpackSigns& arguments) override;

 private:
  HostBackend& host_;
};

class ReferenceBackend final : public HostBackend {
 public:
  explicit ReferenceBackend(const BackendOptions& options) : HostBackend(options) {}
  std::string name() const override { return "reference"; }
  BackendInformation information() const override { return {"host, plain loops", "baseline", "plain loops", 1}; }
  bool computes_in(DType dtype) const override { return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16; }
  MatrixKernels& matrix() override { return matrix_; }
  AttentionKernels& attention() override { return attention_; }
  NormalizationKernels& normalization() override { return normalization_; }
  ActivationKernels& activation() override { return activation_; }
  EmbeddingLossKernels& embedding_loss() override { return embedding_loss_; }
  OptimizerKernels& optimizer() override { return optimizer_; }
  SignKernels& signs() override { return signs_; }

 private:
  Matrix matrix_{*this};
  Attention attention_{*this};
  Normalization normalization_{*this};
  Activation activation_{*this};
  EmbeddingLoss embedding_loss_{*this};
  Optimizer optimizer_{*this};
  Signs signs_{*this};
};

}  // namespace dmuon::reference
