// What all host backends share: memory, streams, copies, counters, and launch(), the one place every kernel passes
// through. The guarded, deferred and shape-only modes live here, so no kernel knows of them.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "dmuon/backend/backend.h"

namespace dmuon {

class HostBackend : public Backend {
 public:
  explicit HostBackend(const BackendOptions& options);
  ~HostBackend() override;

  Allocator& allocator() final { return *allocator_; }
  HostMode mode() const final { return options_.mode; }
  bool shape_only() const final { return options_.mode == HostMode::shape_only; }
  Stream& compute_stream() final { return *compute_stream_; }
  std::unique_ptr<Stream> make_communication_stream(std::string_view name) final;
  void copy_to_host(Stream& stream, const Tensor& source, void* destination) final;
  void copy_from_host(Stream& stream, const void* source, const Tensor& destination) final;
  void copy(Stream& stream, const Tensor& source, const Tensor& destination) final;
  void zero(Stream& stream, const Tensor& destination) final;
  std::map<std::string, KernelCost> costs() const final;
  void reset_costs() final;
  void profile(bool on) final { profiling_ = on; }

  const BackendOptions& options() const { return options_; }

  // Runs `kernel` in stream order. `tensors` are all that it touches (undefined ones are skipped); `kernel` captures
  // its arguments by value. `name` and `flops` feed costs().
  template <class Kernel>
  void launch(Stream& stream, const char* name, double flops, std::vector<Tensor> tensors, Kernel kernel) {
    count(name, flops);
    if (shape_only()) return;
    if (options_.mode == HostMode::normal && stream.runs_inline()) {
      if (!profiling_) return kernel();
      const auto start = std::chrono::steady_clock::now();
      kernel();
      add_seconds(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      return;
    }
    stream.submit([tensors = std::move(tensors), kernel = std::move(kernel)]() mutable {
      for (Tensor& tensor : tensors)
        if (tensor.defined()) tensor.storage()->open();
      struct Closer {
        std::vector<Tensor>& tensors;
        ~Closer() {
          for (Tensor& tensor : tensors)
            if (tensor.defined()) tensor.storage()->close();
        }
      } closer{tensors};
      kernel();
    });
  }

 private:
  void count(const char* name, double flops);
  void add_seconds(const char* name, double seconds);

  BackendOptions options_;
  std::shared_ptr<Allocator> allocator_;
  std::unique_ptr<DeferredScheduler> scheduler_;  // deferred mode only
  std::unique_ptr<Stream> compute_stream_;
  bool profiling_ = false;
  mutable std::mutex costs_mutex_;
  std::map<std::string, KernelCost> costs_;
};

}  // namespace dmuon
