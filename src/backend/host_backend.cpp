#include "backend/host_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/convert.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::shared_ptr<Allocator> make_allocator(HostMode mode) {
  if (mode == HostMode::shape_only) return make_counting_allocator();
  HostAllocatorOptions options;
  options.guarded = mode == HostMode::guarded;
  options.poison = mode != HostMode::normal;
  return make_host_allocator(options);
}

// Calls body(first, count) for consecutive chunks of `elements`, on `threads` threads when that pays.
template <class Body>
void for_chunks(int64_t elements, [[maybe_unused]] int threads, const Body& body) {
  constexpr int64_t chunk = int64_t{1} << 16;
  const int64_t chunks = (elements + chunk - 1) / chunk;
#pragma omp parallel for num_threads(threads) if (threads > 1 && chunks >= 4)
  for (int64_t i = 0; i < chunks; ++i) body(i * chunk, std::min(chunk, elements - i * chunk));
}

}  // namespace

HostBackend::HostBackend(const BackendOptions& options) : options_(options), allocator_(make_allocator(options.mode)) {
  if (options.mode == HostMode::deferred) {
    scheduler_ = std::make_unique<DeferredScheduler>(options.deferred_seed);
    compute_stream_ = scheduler_->make_stream();
  } else {
    compute_stream_ = make_inline_stream();
  }
}

HostBackend::~HostBackend() = default;

std::unique_ptr<Stream> HostBackend::make_communication_stream(std::string_view name) {
  return scheduler_ ? scheduler_->make_stream() : make_worker_stream(name);
}

void HostBackend::copy_to_host(Stream& stream, const Tensor& source, void* destination) {
  if (shape_only() && source.bytes() > 0) std::memset(destination, 0, static_cast<size_t>(source.bytes()));
  launch(stream, "copy_to_host", 0, {source},
         [=] { convert_elements(source.raw(), source.dtype(), destination, source.dtype(), source.elements()); });
  stream.synchronize();
}

void HostBackend::copy_from_host(Stream& stream, const void* source, const Tensor& destination) {
  const auto copy_bytes = [=](const void* from) {
    convert_elements(from, destination.dtype(), destination.raw(), destination.dtype(), destination.elements());
  };
  if (stream.runs_inline() || shape_only()) {
    launch(stream, "copy_from_host", 0, {destination}, [=] { copy_bytes(source); });
    return;
  }
  // The caller may change its memory before the stream gets here.
  const char* bytes = static_cast<const char*>(source);
  auto staged = std::make_shared<const std::vector<char>>(bytes, bytes + destination.bytes());
  launch(stream, "copy_from_host", 0, {destination}, [=] { copy_bytes(staged->data()); });
}

void HostBackend::copy(Stream& stream, const Tensor& source, const Tensor& destination) {
  const bool convertible = is_floating(source.dtype()) && is_floating(destination.dtype());
  if (source.elements() != destination.elements() || (source.dtype() != destination.dtype() && !convertible))
    throw ShapeError(
        text("copy needs equal element counts and floating or equal dtypes: ", source.to_string(), " to ", destination.to_string()));
  // A worker never enters a parallel region.
  const int threads = stream.runs_inline() ? options_.threads : 1;
  launch(stream, "copy", 0, {source, destination}, [=] {
    const char* from = static_cast<const char*>(source.raw());
    char* to = static_cast<char*>(destination.raw());
    if (from == to) return;
    for_chunks(source.elements(), threads, [&](int64_t first, int64_t count) {
      convert_elements(from + first * size_of(source.dtype()), source.dtype(), to + first * size_of(destination.dtype()),
                       destination.dtype(), count);
    });
  });
}

void HostBackend::zero(Stream& stream, const Tensor& destination) {
  const int threads = stream.runs_inline() ? options_.threads : 1;
  launch(stream, "zero", 0, {destination}, [=] {
    char* bytes = static_cast<char*>(destination.raw());
    for_chunks(destination.bytes(), threads,
               [&](int64_t first, int64_t count) { std::memset(bytes + first, 0, static_cast<size_t>(count)); });
  });
}

std::map<std::string, KernelCost> HostBackend::costs() const {
  std::lock_guard lock(costs_mutex_);
  return costs_;
}

void HostBackend::reset_costs() {
  std::lock_guard lock(costs_mutex_);
  costs_.clear();
}

void HostBackend::count(const char* name, double flops) {
  std::lock_guard lock(costs_mutex_);
  KernelCost& cost = costs_[name];
  ++cost.calls;
  cost.flops += flops;
}

void HostBackend::add_seconds(const char* name, double seconds) {
  std::lock_guard lock(costs_mutex_);
  costs_[name].seconds += seconds;
}

}  // namespace dmuon
