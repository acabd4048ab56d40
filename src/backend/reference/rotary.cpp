#include "backend/reference/reference_backend.h"

#include "dmuon/core/error.h"

namespace dmuon::reference {

void Attention::rotary_forward(Stream&, const RotaryForward&) { throw DeviceError("not yet"); }
void Attention::rotary_backward(Stream&, const RotaryBackward&) { throw DeviceError("not yet"); }

}  // namespace dmuon::reference
