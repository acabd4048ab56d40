#include "dmuon/backend/measurement_key.h"

#include "dmuon/core/text.h"

namespace dmuon {

MeasurementKey measurement_key(const Backend& backend) {
  const BackendInformation information = backend.information();
  return {information.device, information.instruction_set, text(information.gemm, ", dmuon ", DMUON_VERSION, " kernels ", kernel_revision),
          information.threads};
}

}  // namespace dmuon
