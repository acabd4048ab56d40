#include "comm/shared/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t header_bytes = 4096;  // holds the id, by which an opener knows that it found the right memory

[[noreturn]] void fail(const std::string& what, int error) { throw CommunicationError(text(what, ": ", std::strerror(error))); }

uint64_t random_id() {
  std::random_device device;
  const uint64_t id = (uint64_t{device()} << 32) | device();
  return id == 0 ? 1 : id;
}

}  // namespace

SharedSegment::SharedSegment(int descriptor, int64_t bytes, uint64_t id) : descriptor_(descriptor), bytes_(bytes), id_(id) {}

SharedSegment::~SharedSegment() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(header_bytes + bytes_));
  seal();
}

void SharedSegment::map() {
  void* mapping = mmap(nullptr, static_cast<size_t>(header_bytes + bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapping == MAP_FAILED) fail(text("mapping ", format_bytes(bytes_), " of shared memory"), errno);
  mapping_ = static_cast<char*>(mapping);
}

std::shared_ptr<SharedSegment> SharedSegment::create(int64_t bytes) {
  const int descriptor = memfd_create("dmuon", MFD_CLOEXEC);
  if (descriptor < 0) fail("memfd_create", errno);
  const std::shared_ptr<SharedSegment> segment(new SharedSegment(descriptor, bytes, random_id()));
  if (ftruncate(descriptor, header_bytes + bytes) != 0) fail(text("sizing ", format_bytes(bytes), " of shared memory"), errno);
  segment->map();
  std::memcpy(segment->mapping_, &segment->id_, sizeof(segment->id_));
  return segment;
}

std::string SharedSegment::address() const { return text(getpid(), " ", descriptor_, " ", bytes_, " ", id_); }

std::shared_ptr<SharedSegment> SharedSegment::open(const std::string& address) {
  std::istringstream in(address);
  int64_t process = 0;
  int64_t number = 0;
  int64_t bytes = 0;
  uint64_t id = 0;
  if (!(in >> process >> number >> bytes >> id)) throw CommunicationError(text("no address of shared memory: \"", address, "\""));
  const std::string path = text("/proc/", process, "/fd/", number);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail(path, errno);
  const std::shared_ptr<SharedSegment> segment(new SharedSegment(descriptor, bytes, id));
  struct stat status {};
  uint64_t found = 0;
  if (fstat(descriptor, &status) != 0 || status.st_size != header_bytes + bytes ||
      pread(descriptor, &found, sizeof(found), 0) != sizeof(found) || found != id)
    throw CommunicationError(text(path, " is other memory: the ranks of this host do not see the same processes"));
  segment->map();
  return segment;
}

char* SharedSegment::data() const { return mapping_ + header_bytes; }

void SharedSegment::reserve(int64_t first, int64_t bytes) const {
  if (bytes == 0) return;
  const int error = posix_fallocate(descriptor_, header_bytes + first, bytes);
  if (error != 0) fail(text("reserving ", format_bytes(bytes), " of shared memory"), error);
}

void SharedSegment::seal() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

SharedSegmentResult share_segment(const SharedSegmentRequest& request,
                                  const std::function<std::vector<std::string>(const std::string&)>& gather) {
  std::shared_ptr<SharedSegment> segment;
  std::string problem;
  const auto attempt = [&](const std::function<void()>& step) {
    try {
      if (problem.empty()) step();
    } catch (const CommunicationError& error) {
      problem = error.what();
    }
  };
  std::string offer;
  if (request.rank == 0) {
    attempt([&] { segment = SharedSegment::create(request.bytes_per_rank * request.ranks); });
    // Of threads the first lends its handle, which lives until all have answered.
    if (segment) offer = request.one_process ? text(reinterpret_cast<uintptr_t>(&segment)) : segment->address();
  }
  offer = gather(offer)[0];
  if (offer.empty() && request.rank != 0) problem = "rank 0 of the group has none";
  if (request.rank != 0)
    attempt([&] {
      segment = request.one_process ? *reinterpret_cast<std::shared_ptr<SharedSegment>*>(std::stoull(offer)) : SharedSegment::open(offer);
    });
  if (request.reserve) attempt([&] { segment->reserve(request.bytes_per_rank * request.rank, request.bytes_per_rank); });
  const std::vector<std::string> problems = gather(problem);
  for (size_t r = 0; r < problems.size(); ++r)
    if (!problems[r].empty()) return {nullptr, problems[r], static_cast<int>(r)};
  // Threads share the descriptor: the last handle closes it.
  if (!request.one_process) segment->seal();
  return {segment, "", -1};
}

}  // namespace dmuon
