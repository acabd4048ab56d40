// Largest singular value of one matrix, for reports.
#pragma once

#include "dmuon/backend/backend.h"

namespace dmuon {

// Of a float32 matrix [rows, columns], from below, to a few per cent where its spectrum is dense at the top, as that of signs
// is: power iteration with the backend's products. Blocks. Deterministic for equal matrices.
double operator_norm(Backend& backend, Stream& stream, const Tensor& matrix);

}  // namespace dmuon
