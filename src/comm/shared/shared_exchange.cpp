#include "comm/shared/shared_exchange.h"

#include <sched.h>

#include "comm/backoff.h"
#include "comm/expiry.h"
#include "comm/shared/shared_storage.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

int usable_processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

// `first_missing` returns a rank, or -1 when all are there. `why` tells what it has not done; null: found out.
template <class FirstMissing>
void SharedExchange::wait(FirstMissing first_missing, const char* why) {
  if (first_missing() < 0) return;
  // Ranks that each have a core wait for one another a moment before they offer it to others. Not longer: a peer that has
  // lost its core to another program comes back sooner for the offer, which costs almost nothing where nobody wants it.
  static const int processors = usable_processors();
  Backoff backoff(size() <= processors ? 50 : 20);
  auto last_slow_check = std::chrono::steady_clock::now();
  while (first_missing() >= 0) {
    backoff.pause();
    const auto now = std::chrono::steady_clock::now();
    if (now - last_slow_check < std::chrono::milliseconds(2)) continue;
    last_slow_check = now;
    group_.check();
    throw_if_another_gave_up(group_);
    if (!deadline_.passed(now)) continue;
    // Everybody who is behind this rank, by what it lacks.
    const uint64_t mine = shared_.line(operation_.sequence, rank()).progress.load(std::memory_order_relaxed);
    std::vector<std::string> waiting;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const SharedGroup::Line& line = shared_.line(operation_.sequence, r);
      const uint64_t theirs = line.progress.load(std::memory_order_acquire);
      if (why != nullptr) {
        if (line.left.load(std::memory_order_acquire) < operation_.sequence - SharedGroup::slots)
          waiting.push_back(text(group_.who(r), ", ", why));
      } else if (static_cast<int64_t>(theirs >> 32) < operation_.sequence) {
        waiting.push_back(text(group_.who(r), ", which has not entered"));
      } else if (theirs < mine) {
        waiting.push_back(text(group_.who(r), ", whose data is incomplete"));
      }
    }
    if (waiting.empty()) waiting.push_back(text(group_.who(first_missing()), ", whose data is incomplete"));
    expire(group_, operation_, deadline_.seconds(), waiting);
  }
}

SharedExchange::SharedExchange(Group& group, const Operation& operation, std::vector<Tensor> tensors)
    : group_(group),
      shared_(*group.shared()),
      operation_(operation),
      tensors_(std::move(tensors)),
      met_(static_cast<size_t>(group.size())),
      deadline_(group.deadline_seconds()),
      scope_(*group.services().activity, operation, group.name()) {
  const int64_t before = operation_.sequence - SharedGroup::slots;
  if (before > group.shared_since())
    wait(
        [&] {
          for (int r = 0; r < size(); ++r)
            if (shared_.line(operation_.sequence, r).left.load(std::memory_order_acquire) < before) return r;
          return -1;
        },
        "which is still in an earlier collective");
  for (const Tensor& tensor : tensors_)
    if (tensor.defined()) tensor.storage()->open();
}

SharedExchange::~SharedExchange() {
  for (const Tensor& tensor : tensors_)
    if (tensor.defined()) tensor.storage()->close();
}

void SharedExchange::enter(const Tensor& data, int64_t payload) {
  SharedGroup::Line& line = shared_.line(operation_.sequence, rank());
  line.greeting = make_greeting(operation_, payload);
  segment_ = data.defined() ? segment_of(data) : nullptr;
  line.segment = segment_ ? segment_->id() : 0;
  line.place = segment_ ? static_cast<char*>(data.raw()) - segment_->data() : 0;
  post(0);
}

void SharedExchange::post(int64_t step) {
  const uint64_t progress = static_cast<uint64_t>(operation_.sequence) << 32 | static_cast<uint64_t>(step);
  shared_.line(operation_.sequence, rank()).progress.store(progress, std::memory_order_release);
}

void SharedExchange::leave() { shared_.line(operation_.sequence, rank()).left.store(operation_.sequence, std::memory_order_release); }

bool SharedExchange::reached(int rank, int64_t step) {
  const uint64_t progress = shared_.line(operation_.sequence, rank).progress.load(std::memory_order_acquire);
  if (static_cast<int64_t>(progress >> 32) < operation_.sequence) return false;
  if (!met_[static_cast<size_t>(rank)]) check_greeting(rank);
  return static_cast<int64_t>(progress & 0xffffffffu) >= step;
}

void SharedExchange::wait_all(int64_t step) {
  int next = 0;
  wait(
      [&] {
        while (next < size() && reached((rank() + next) % size(), step)) ++next;
        return next < size() ? (rank() + next) % size() : -1;
      },
      nullptr);
}

void SharedExchange::wait_for(int rank, int64_t step) {
  wait([&] { return reached(rank, step) ? -1 : rank; }, nullptr);
}

bool SharedExchange::in_place() const {
  if (segment_ == nullptr) return false;
  for (int r = 0; r < size(); ++r)
    if (shared_.line(operation_.sequence, r).segment != segment_->id()) return false;
  return true;
}

char* SharedExchange::data(int rank) const { return segment_->data() + shared_.line(operation_.sequence, rank).place; }
int64_t SharedExchange::payload(int rank) const { return shared_.line(operation_.sequence, rank).greeting.payload; }

void SharedExchange::count_sent_to_each(int64_t bytes) {
  for (int r = 0; r < size(); ++r)
    if (r != rank()) group_.count_sent(bytes, r);
}

void SharedExchange::check_greeting(int rank) {
  check_same_call(group_, operation_, shared_.line(operation_.sequence, rank).greeting, rank);
  met_[static_cast<size_t>(rank)] = true;
}

}  // namespace dmuon
