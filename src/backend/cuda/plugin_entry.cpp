#include "backend/cuda/cuda_backend.h"
#include "dmuon/backend/plugin.h"

namespace {

dmuon::Backend* make(const dmuon::BackendOptions& options) { return new dmuon::cuda::CudaBackend(options); }

constexpr dmuon::BackendPlugin plugin{{dmuon::backend_plugin_version, sizeof(dmuon::BackendPlugin), DMUON_INTERFACE}, "cuda", &make};

}  // namespace

extern "C" const dmuon::BackendPlugin* dmuon_backend_entry() { return &plugin; }
