#include "comm/shared/shared_group.h"

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

constexpr int64_t lines_bytes = round_up(SharedGroup::slots * static_cast<int64_t>(sizeof(SharedGroup::Line)), 4096);

}  // namespace

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
static_assert(sizeof(SharedGroup::Line) == 128);

int64_t SharedGroup::buffer_bytes(int ranks) { return round_up(chunk_bytes + 64 * static_cast<int64_t>(ranks), 4096); }
int64_t SharedGroup::bytes_per_rank(int ranks) { return lines_bytes + slots * 4 * buffer_bytes(ranks); }

// Fresh shared memory is zero, which is the initial value of every line.
SharedGroup::SharedGroup(std::shared_ptr<SharedSegment> segment, int ranks, std::shared_ptr<const void> account)
    : segment_(std::move(segment)), account_(std::move(account)), ranks_(ranks) {}

SharedGroup::Line& SharedGroup::line(int64_t sequence, int rank) const {
  return reinterpret_cast<Line*>(segment_->data() + rank * bytes_per_rank(ranks_))[sequence % slots];
}

char* SharedGroup::slot(int64_t sequence, int rank) const {
  return segment_->data() + rank * bytes_per_rank(ranks_) + lines_bytes + sequence % slots * 4 * buffer_bytes(ranks_);
}

char* SharedGroup::input(int64_t sequence, int rank, int64_t buffer) const {
  return slot(sequence, rank) + buffer % 2 * buffer_bytes(ranks_);
}
char* SharedGroup::output(int64_t sequence, int rank, int64_t buffer) const {
  return slot(sequence, rank) + (2 + buffer % 2) * buffer_bytes(ranks_);
}

}  // namespace dmuon
