// Momentum, norms and Newton-Schulz of many matrices, in batches of equal shape, with what was tuned for them and the counters.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "optim/device_muon.h"
#include "optim/muon_tuning.h"
#include "optim/rule_support.h"

namespace dmuon {

// Items taken apart into what is orthogonalised by itself: views of their tensors.
struct MatrixItems {
  struct Origin {
    size_t item = 0;    // index of the item that the matrix is of
    int64_t first = 0;  // element of it that the matrix begins at
  };
  std::vector<UpdateItem> items;
  std::vector<Origin> origins;
};

class OrthogonalMomentum {
 public:
  // ConfigError "<rule>: <field> ..." for options out of range.
  OrthogonalMomentum(std::string rule, const OrthogonalMomentumOptions& options);

  // Adds every field that changes the result.
  void describe(Json& description) const;
  double flops(const Shape& shape) const;  // momentum and orthogonalisation of one tensor; ShapeError unless a matrix
  const UpdateCounters& counters() const { return counters_; }

  Json tune(Backend& backend, std::span<const ShapeCount> shapes, MeasurementCache* cache);
  void adopt(const Json& choices);

  void prepare(Backend& backend, Stream& stream, const StepValues& values);

  // The matrices of whole items (without votes): one each, or with per_head the heads of [heads, rows, columns]. ShapeError naming the
  // parameter for anything else.
  MatrixItems matrices_of(std::span<const UpdateItem> items) const;

  // Where an orthogonalised matrix goes: called once for every matrix of the items, in an order that depends on the shapes.
  using Consumer = std::function<void(UpdateItem& item, const Shape& matrix_shape, const Tensor& orthogonal)>;
  // Advances the momentum (state 0) of every item and hands out the orthogonalised update. `in_place`: the gradient is the
  // scratch of the iteration and what it holds afterwards is undefined; otherwise it is only read. ShapeError naming the
  // parameter unless the items are matrices.
  void run(const UpdateRule& rule, Backend& backend, Stream& stream, std::span<UpdateItem> items, bool in_place, const Consumer& consume);
  // The whole update: run() and a MuonApply for every item. In float16 the update stays on the device from
  // the gradient to the parameter. The gradient is only read.
  void update(const UpdateRule& rule, Backend& backend, Stream& stream, std::span<UpdateItem> items, const ApplyOf& apply_of);
  // The same engine on matrices of one shape without momentum; the given tensors are scratch.
  std::vector<Tensor> orthogonalize(Backend& backend, Stream& stream, std::span<const Tensor> matrices, int queues);
  // Calls `update` with the matrices of equal shape, as many at once as share a call of the engine.
  using Batch = std::function<void(const Shape& matrix_shape, std::span<UpdateItem* const> items, int queues)>;
  void for_batches(std::span<UpdateItem> items, const Batch& update) const;

 private:
  bool on_device() const { return options_.newton_schulz.dtype == DType::float16; }  // without the host
  void take(MuonTuning tuning);
  MatrixItems checked_matrices(const UpdateRule& rule, std::span<const UpdateItem> items) const;
  NewtonSchulzPlacement placement_of(const Shape& shape, DType dtype, int64_t count) const;
  void run_batch(Backend& backend, Stream& stream, const Shape& shape, std::span<UpdateItem* const> items, int queues, bool in_place,
                 const Consumer& consume);
  std::vector<Tensor> count(NewtonSchulzResult result);

  std::string rule_;
  OrthogonalMomentumOptions options_;
  MuonTuning tuning_;
  bool adopted_ = false;                              // the tuning is another rank's, or a checkpoint's
  bool forms_in_use_ = false;                         // the device knows tuning_.symmetric
  int threads_ = 1;                                   // of the backend; known from the first prepare() on
  double momentum_now_ = 0.0, gradient_scale_ = 1.0;  // what hyper_ holds
  int64_t scratch_bytes_ = 0;                         // of DeviceScratch
  HyperTensor hyper_;
  UpdateCounters counters_;
};

}  // namespace dmuon
