// Layers: parameters that belong together, declared and applied in one line each. Plain structs; a model is free to call
// the operations directly.
#pragma once

#include <string>

#include "dmuon/autograd/operations.h"
#include "dmuon/nn/parameter.h"

namespace dmuon {

// y = x W^T + b; "<name>.weight" [out, in] in role matrix, "<name>.bias" [out] in role vector. `heads`: blocks of rows of the weight.
struct LinearLayer {
  Variable weight, bias;  // bias undefined without

  static LinearLayer declare(Inventory& inventory, int unit, const std::string& name, int64_t out, int64_t in, bool with_bias,
                             double deviation, int64_t heads = 1);
  Variable operator()(ExecutionContext& context, const Variable& x) const { return linear(context, x, weight, bias); }
};

// Layer normalisation or root mean square normalisation; "<name>.weight" (ones) and "<name>.bias" (zeros; never for
// rms_norm) [width] in role vector.
struct NormalizationLayer {
  Variable weight, bias;
  NormalizationOptions options;

  static NormalizationLayer declare(Inventory& inventory, int unit, const std::string& name, int64_t width, bool with_bias,
                                    const NormalizationOptions& options);
  Variable operator()(ExecutionContext& context, const Variable& x) const { return normalization(context, x, weight, bias, options); }
  // Of x + dropout(branch + branch_bias), see residual_normalization.
  ResidualNormalization operator()(ExecutionContext& context, const Variable& x, Variable branch, const Variable& branch_bias,
                                   double dropout, uint64_t operation) const {
    return residual_normalization(context, x, std::move(branch), branch_bias, dropout, operation, weight, bias, options);
  }
};

}  // namespace dmuon
