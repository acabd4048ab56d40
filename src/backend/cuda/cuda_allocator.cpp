#include "backend/cuda/cuda_allocator.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/external_memory.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

class DeviceStorage final : public Storage {
 public:
  DeviceStorage(void* data, int64_t bytes, MemoryCategory category, std::shared_ptr<const void> counted)
      : Storage(data, bytes, category), counted_(std::move(counted)) {}
  ~DeviceStorage() override { cudaFree(data_); }

 private:
  std::shared_ptr<const void> counted_;
};

class CudaAllocator final : public Allocator {
 public:
  StorageHandle allocate(int64_t bytes, MemoryCategory category, std::string_view name) override {
    void* data = nullptr;
    check(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))), text(bytes, " bytes for \"", name, '"'));
    return std::make_shared<DeviceStorage>(data, bytes, category, count_external_memory(*accounting_, bytes, category));
  }
  MemoryStatistics statistics() const override { return accounting_->statistics(); }
  void reset_peak() override { accounting_->reset_peak(); }

 private:
  std::shared_ptr<Allocator> accounting_ = make_counting_allocator();
};

}  // namespace

std::shared_ptr<Allocator> make_cuda_allocator() { return std::make_shared<CudaAllocator>(); }

}  // namespace dmuon::cuda
