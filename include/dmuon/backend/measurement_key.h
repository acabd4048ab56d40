// What a measurement on a backend depends on, for caches of measurements that outlive a run and a build.
#pragma once

#include "dmuon/backend/backend.h"
#include "dmuon/core/measurement_cache.h"

namespace dmuon {

// To be raised with every change that makes a kernel faster or slower: what was measured with other kernels is then
// measured again.
inline constexpr int kernel_revision = 1;

// Libraries: the backend's own ("oneDNN 2.6.3"), and this project's version with the revision of its kernels.
MeasurementKey measurement_key(const Backend& backend);

}  // namespace dmuon
