#include "backend/cuda/cuda_allocator.h"

#include <algorithm>
#include <list>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

// A place in a stream. The event is recorded once and waited for by any number of streams; null where none could be recorded.
struct Mark {
  cudaStream_t stream;
  cudaEvent_t event;
};

struct Block {
  void* data = nullptr;
  int64_t size = 0;
  MemoryCategory category{};  // of its last life
  bool crossed = false;       // some life was touched by another stream than the compute stream
  // What came before the present life: marks of streams, and the compute stream where it left none.
  std::vector<Mark> before;
  bool before_compute = false;
};

class DeviceSource final : public BlockSource {
 public:
  explicit DeviceSource(int device) : device_(device) {}
  void* allocate(int64_t bytes) override {
    void* data = nullptr;
    check(cudaSetDevice(device_), text("CUDA device ", device_));
    const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this error is answered here
      return nullptr;
    }
    check(status, text("memory of the device, ", bytes, " bytes"));
    return data;
  }
  void release(void* data) override { cudaFree(data); }
  bool counts_only() const override { return false; }
  void make_current() const noexcept override { cudaSetDevice(device_); }
  std::pair<int64_t, int64_t> free_and_total() const override {
    size_t free = 0, total = 0;
    make_current();
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {0, 0};
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }

 private:
  int device_;
};

class CountingSource final : public BlockSource {
 public:
  void* allocate(int64_t) override { return nullptr; }
  void release(void*) override {}
  bool counts_only() const override { return true; }
  void make_current() const noexcept override {}
  std::pair<int64_t, int64_t> free_and_total() const override { return {0, 0}; }
};

}  // namespace

std::unique_ptr<BlockSource> make_device_source(int device) { return std::make_unique<DeviceSource>(device); }
std::unique_ptr<BlockSource> make_counting_source() { return std::make_unique<CountingSource>(); }

// Lives as long as any block, so that tensors may outlive the backend.
struct CudaAllocator::State {
  State(std::unique_ptr<BlockSource> s, cudaStream_t c, const CudaAllocatorOptions& o, std::shared_ptr<Supervision> w)
      : source(std::move(s)), compute(c), options(o), supervision(std::move(w)) {
    if (compute != nullptr) streams.insert(compute);
  }
  ~State() {
    std::unique_lock lock(mutex);
    take_all_cached();
    release_leaving(lock);
    for (cudaEvent_t event : spare_events) cudaEventDestroy(event);
  }

  MemoryAccounting accounting;
  std::mutex mutex;  // of all below; not held while waiting for the device
  const std::unique_ptr<BlockSource> source;
  const cudaStream_t compute;
  const CudaAllocatorOptions options;
  const std::shared_ptr<Supervision> supervision;
  std::set<cudaStream_t> streams;
  std::vector<cudaEvent_t> spare_events;
  bool capturing = false;

  // Cached blocks, the latest first; by size and category, because a block that crossed streams in its last life will do so again
  // in the same role.
  std::list<Block> recent;
  std::map<std::pair<int64_t, MemoryCategory>, std::vector<std::list<Block>::iterator>> cached;
  std::vector<Block> leaving;  // no longer cached, to be given back to the driver
  std::set<int64_t> trimmed;   // sizes that trimming gave back
  int64_t allowance = 0;       // cached beyond the limit, because giving it back was in vain
  int64_t highest = 0;         // bytes of blocks in use, ever
  BlockStatistics statistics;

  // A tensor may go on any thread, and an event belongs to the device that was current when it was made.
  cudaEvent_t record(cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    source->make_current();
    if (!spare_events.empty()) {
      event = spare_events.back();
      spare_events.pop_back();
    } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
      return nullptr;
    }
    if (cudaEventRecord(event, stream) == cudaSuccess) return event;
    spare_events.push_back(event);
    return nullptr;
  }

  void drop_marks(Block& block) {
    for (const Mark& mark : block.before) spare_events.push_back(mark.event);
    block.before.clear();
    block.before_compute = false;
  }

  // Unlocks while it waits.
  void wait_for(std::unique_lock<std::mutex>& lock, const std::vector<Mark>& marks) {
    lock.unlock();
    for (const Mark& mark : marks) mark.event != nullptr ? supervision->drain(mark.event) : supervision->drain(mark.stream);
    lock.lock();
    for (const Mark& mark : marks)
      if (mark.event != nullptr) spare_events.push_back(mark.event);
  }

  // What has to be waited for until nothing that touched the block is running, or is queued otherwise than before what is being
  // captured. The block has no marks afterwards.
  std::vector<Mark> marks_before(Block& block) {
    std::vector<Mark> marks = std::move(block.before);
    if (block.before_compute && streams.count(compute) > 0) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      const bool ordered = cudaStreamIsCapturing(compute, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive;
      if (!ordered) marks.push_back({compute, record(compute)});
    }
    block.before.clear();
    block.before_compute = false;
    return marks;
  }

  // Unlocks while it waits: the driver does so for the whole device, so all streams are waited for before. The test double
  // must not order streams that way.
  void release_leaving(std::unique_lock<std::mutex>& lock) {
    if (leaving.empty()) return;
    std::vector<Block> blocks = std::move(leaving);
    leaving.clear();
    std::vector<Mark> marks;
    for (Block& block : blocks) {
      if (options.exact)
        for (const Mark& mark : marks_before(block)) marks.push_back(mark);
      else
        drop_marks(block);
    }
    if (!options.exact)
      for (cudaStream_t stream : streams) marks.push_back({stream, record(stream)});
    wait_for(lock, marks);
    lock.unlock();
    for (const Block& block : blocks) source->release(block.data);
    lock.lock();
  }

  void leave(Block&& block) {
    statistics.reserved -= block.size;
    leaving.push_back(std::move(block));
  }

  Block take_out(std::list<Block>::iterator position) {
    auto& stack = cached[{position->size, position->category}];
    stack.erase(std::find(stack.begin(), stack.end(), position));
    Block block = std::move(*position);
    recent.erase(position);
    return block;
  }

  void take_all_cached() {
    for (Block& block : recent) leave(std::move(block));
    recent.clear();
    cached.clear();
  }

  void trim(int64_t wanted) {
    if (capturing) return;
    highest = std::max(highest, statistics.in_use + wanted);
    const int64_t slack = std::max(static_cast<int64_t>(options.cache_fraction * static_cast<double>(highest)), int64_t{32} << 20);
    while (!recent.empty() && statistics.reserved + wanted > highest + slack + allowance) {
      trimmed.insert(recent.back().size);
      leave(take_out(std::prev(recent.end())));
    }
  }

  // Test double: what the device is done with goes back.
  void take_finished() {
    for (auto next = recent.begin(); next != recent.end() && !capturing;) {
      const auto block = next++;
      const auto done = [](const Mark& mark) { return cudaEventQuery(mark.event) != cudaErrorNotReady; };
      if (std::all_of(block->before.begin(), block->before.end(), done)) leave(take_out(block));
    }
  }

  bool take_cached(int64_t size, MemoryCategory category, Block& block) {
    const auto take = [&](MemoryCategory from) {
      const auto found = cached.find({size, from});
      if (found == cached.end() || found->second.empty()) return false;
      const auto position = found->second.back();
      found->second.pop_back();
      block = std::move(*position);
      recent.erase(position);
      return true;
    };
    if (take(category)) return true;
    for (size_t other = 0; other < static_cast<size_t>(MemoryCategory::count); ++other)
      if (take(static_cast<MemoryCategory>(other))) return true;
    return false;
  }

  // False when the driver has no memory left.
  bool take_fresh(std::unique_lock<std::mutex>& lock, int64_t size, Block& block) {
    if (trimmed.erase(size) > 0) allowance += size;
    trim(size);
    release_leaving(lock);
    block = {};
    block.size = size;
    block.data = source->allocate(size);
    if (block.data == nullptr && !source->counts_only()) {
      if (capturing) return false;
      take_all_cached();
      release_leaving(lock);
      block.data = source->allocate(size);
      if (block.data == nullptr) return false;
    }
    statistics.reserved += size;
    statistics.peak_reserved = std::max(statistics.peak_reserved, statistics.reserved);
    return true;
  }

  void give_back(Block&& block, const std::vector<cudaStream_t>& users) {
    std::unique_lock lock(mutex);
    statistics.in_use -= block.size;
    if (!users.empty()) {
      drop_marks(block);  // the users of this life have waited for them
      for (cudaStream_t stream : users) block.crossed = block.crossed || stream != compute;
      std::vector<Mark> unmarked;
      for (cudaStream_t stream : users) {
        if (streams.count(stream) == 0) continue;  // it has ended
        const bool marked = block.crossed || options.exact;
        const cudaEvent_t event = marked ? record(stream) : nullptr;
        if (event != nullptr)
          block.before.push_back({stream, event});
        else if (stream == compute)
          block.before_compute = true;
        else
          unmarked.push_back({stream, nullptr});  // nothing orders its work before the next life but this wait
      }
      if (!unmarked.empty()) wait_for(lock, unmarked);
    }
    recent.push_front(std::move(block));
    const auto position = recent.begin();
    cached[{position->size, position->category}].push_back(position);
    if (!options.exact) trim(0);
    release_leaving(lock);
  }
};

class CudaAllocator::BlockStorage final : public Storage {
 public:
  BlockStorage(std::shared_ptr<State> state, Block&& block, int64_t bytes, MemoryCategory category)
      : Storage(block.data, bytes, category), state_(std::move(state)), block_(std::move(block)) {
    state_->accounting.add(bytes_, category_);
  }
  ~BlockStorage() override {
    state_->accounting.remove(bytes_, category_);
    state_->give_back(std::move(block_), users_);
  }

  void touch(std::unique_lock<std::mutex>& lock, cudaStream_t stream) {
    if (std::find(users_.begin(), users_.end(), stream) != users_.end()) return;
    users_.push_back(stream);
    for (const Mark& mark : block_.before)
      if (mark.stream != stream) check(cudaStreamWaitEvent(stream, mark.event, 0), "a stream waiting for memory");
    if (!block_.before_compute || stream == state_->compute) return;
    // Not the place where the block was freed, which nobody marked, but one behind it.
    const cudaEvent_t event = state_->record(state_->compute);
    if (event == nullptr) return state_->wait_for(lock, {{state_->compute, nullptr}});
    const cudaError_t status = cudaStreamWaitEvent(stream, event, 0);
    state_->spare_events.push_back(event);
    check(status, "a stream waiting for memory");
  }

 private:
  std::shared_ptr<State> state_;
  Block block_;
  std::vector<cudaStream_t> users_;
};

CudaAllocator::CudaAllocator(std::unique_ptr<BlockSource> source, cudaStream_t compute, const CudaAllocatorOptions& options,
                             std::shared_ptr<Supervision> supervision)
    : state_(std::make_shared<State>(std::move(source), compute, options, std::move(supervision))) {}

CudaAllocator::~CudaAllocator() = default;

StorageHandle CudaAllocator::allocate(int64_t bytes, MemoryCategory category, std::string_view name) {
  constexpr int64_t address_space = int64_t{1} << 47;  // sizes beyond it must not reach the rounding below
  State& state = *state_;
  if (bytes < 0 || bytes > address_space) throw_out_of_memory(bytes, category, name, "", statistics());
  const int64_t size = state.options.exact ? std::max<int64_t>(bytes, 1) : block_size_class(bytes);
  std::unique_lock lock(state.mutex);
  if (state.options.exact) {
    state.take_finished();
    state.release_leaving(lock);
  }
  Block block;
  const bool found = !state.options.exact && state.take_cached(size, category, block);
  if (!found && !state.take_fresh(lock, size, block)) {
    const auto [free, total] = state.source->free_and_total();
    const std::string details =
        text("on the device ", format_bytes(free), " of ", format_bytes(total), " are free; this process holds ",
             format_bytes(state.statistics.reserved), " in blocks, of which ", format_bytes(state.statistics.in_use), " are in use");
    lock.unlock();
    throw_out_of_memory(bytes, category, name, details, statistics());
  }
  if (state.capturing) state.wait_for(lock, state.marks_before(block));
  block.category = category;
  state.statistics.in_use += size;
  state.highest = std::max(state.highest, state.statistics.in_use);
  state.statistics.peak_in_use = std::max(state.statistics.peak_in_use, state.statistics.in_use);
  lock.unlock();
  return std::make_shared<BlockStorage>(state_, std::move(block), bytes, category);
}

MemoryStatistics CudaAllocator::statistics() const { return state_->accounting.get(); }

void CudaAllocator::reset_peak() {
  state_->accounting.reset_peak();
  std::unique_lock lock(state_->mutex);
  if (!state_->capturing) state_->take_all_cached();  // what is measured from here on starts with what is in use
  state_->release_leaving(lock);
  BlockStatistics& statistics = state_->statistics;
  statistics.peak_in_use = statistics.in_use;
  statistics.peak_reserved = statistics.reserved;
}

std::shared_ptr<const void> CudaAllocator::count_external(int64_t bytes, MemoryCategory category) {
  return count_while_held(state_, state_->accounting, bytes, category);
}

void CudaAllocator::touch(cudaStream_t stream, const Tensor& tensor) {
  auto* storage = dynamic_cast<BlockStorage*>(tensor.storage().get());
  if (storage == nullptr) return;
  std::unique_lock lock(state_->mutex);
  storage->touch(lock, stream);
}

void CudaAllocator::stream_opened(cudaStream_t stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.insert(stream);
}

void CudaAllocator::stream_closed(cudaStream_t stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.erase(stream);
}

void CudaAllocator::set_capturing(bool capturing) {
  const std::lock_guard lock(state_->mutex);
  state_->capturing = capturing;
}

BlockStatistics CudaAllocator::blocks() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

std::pair<int64_t, int64_t> CudaAllocator::free_and_total() const { return state_->source->free_and_total(); }

}  // namespace dmuon::cuda
