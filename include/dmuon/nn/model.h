// A model declares its parameters when it is made and runs forward passes on whatever memory they have by then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/autograd/operations.h"
#include "dmuon/core/json.h"
#include "dmuon/nn/huggingface.h"
#include "dmuon/nn/parameter.h"

namespace dmuon {

// Entering and leaving a unit, forward and backward: the events that publishing, reducing and releasing hang on.
// Scopes nest (a tied unit inside or around another). Backward leaves a unit after the last contribution of this use to
// its gradients; no gradient of its parameters is written outside enter_backward .. leave_backward. A recomputed unit is
// rerun inside that span and gets no further forward events.
class UnitListener {
 public:
  virtual ~UnitListener() = default;
  virtual void enter_forward(int unit) = 0;
  virtual void leave_forward(int unit) = 0;
  virtual void enter_backward(int unit) = 0;
  virtual void leave_backward(int unit) = 0;
};

// Scope of one use of a unit: constructed before, `leave` called after the unit's operations. Records the backward
// events on the tape. A null listener is allowed.
class UnitScope {
 public:
  UnitScope(ExecutionContext& context, UnitListener* listener, int unit);
  void leave();

 private:
  ExecutionContext& context_;
  UnitListener* listener_;
  int unit_;
};

// What a model can say about itself without memory.
struct ModelFacts {
  int64_t parameters = 0;         // all elements, a tied pair once
  int64_t gemm_parameters = 0;    // elements that enter a matrix product, the head once
  int64_t layers = 0, width = 0;  // of the attention term below
  int64_t context_length = 0;
  int64_t vocabulary_size = 0;  // classes; logits may have more, padded columns
  // 6 * gemm_parameters + 6 * layers * width * T: causal attention counted half, optimizer left out.
  double flops_per_token(int64_t length) const {
    return 6.0 * static_cast<double>(gemm_parameters) +
           6.0 * static_cast<double>(layers) * static_cast<double>(width) * static_cast<double>(length);
  }
};

// Generation memory: one cache per attention layer.
struct ModelCache {
  std::vector<AttentionCache> layers;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Inventory& inventory() const = 0;
  virtual ModelFacts facts() const = 0;

  // Units in the order in which a forward pass enters them, every use listed, and in which its backward does (the reverse
  // of the order in which forward scopes are left). A pass may leave units out, never enter them in another order.
  // Default: every unit once, in the order of declaration.
  virtual std::vector<int> forward_order() const;
  virtual std::vector<int> backward_order() const;

  // tokens, positions: int32 [B, T] -> logits [B, T, V padded]. With a cache (no-grad), T new positions follow the
  // cached ones and `positions` continue them. `last_only` computes logits of the last position only: [B, 1, V padded].
  virtual Variable forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache = nullptr,
                           bool last_only = false) = 0;
  virtual ModelCache make_cache(Backend& backend, int64_t batch, int64_t capacity) const = 0;

  void set_unit_listener(UnitListener* listener) { listener_ = listener; }
  // Every unit marked here is recomputed in the backward pass.
  void set_recompute(bool on) { recompute_ = on; }

 protected:
  UnitListener* listener_ = nullptr;
  bool recompute_ = false;
};

// The explicit table of model families: no registration by side effect.
struct ModelFamily {
  std::string name;  // "gpt2"
  // `settings` is the resolved "model" object of the configuration with vocabulary_size filled in.
  std::function<std::unique_ptr<Model>(const Json& settings)> make;
  HuggingFaceFamily huggingface = {};  // undefined: the family has no form there
};
std::vector<ModelFamily> models();  // defined in models/models.cpp

}  // namespace dmuon
