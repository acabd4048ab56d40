#include "comm/shared/shared_storage.h"

namespace dmuon {
namespace {

class SharedStorage final : public Storage {
 public:
  SharedStorage(std::shared_ptr<SharedSegment> segment, int64_t first, int64_t bytes, MemoryCategory category,
                std::shared_ptr<const void> account)
      : Storage(segment->data() + first, bytes, category), segment_(std::move(segment)), account_(std::move(account)) {}
  const SharedSegment* segment() const { return segment_.get(); }

 private:
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<const void> account_;
};

}  // namespace

StorageHandle make_shared_storage(std::shared_ptr<SharedSegment> segment, int64_t first, int64_t bytes, MemoryCategory category,
                                  std::shared_ptr<const void> account) {
  return std::make_shared<SharedStorage>(std::move(segment), first, bytes, category, std::move(account));
}

const SharedSegment* segment_of(const Tensor& tensor) {
  const auto* storage = dynamic_cast<const SharedStorage*>(tensor.storage().get());
  return storage ? storage->segment() : nullptr;
}

}  // namespace dmuon
