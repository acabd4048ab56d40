// Memory that the ranks of one host map, each at an address of its own. It has no name in any file system: it is gone
// when the last process that maps it is, however that ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dmuon {

class SharedSegment {
 public:
  // Zeroed memory of this process that others can open by `address()`. Both throw CommunicationError with the reason.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);
  static std::shared_ptr<SharedSegment> open(const std::string& address);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const;  // aligned to a page
  int64_t bytes() const { return bytes_; }
  uint64_t id() const { return id_; }  // random, the same for all who map it, never 0
  std::string address() const;         // valid in processes of this user on this host until seal()
  // Takes [first, first + bytes) from the system now, near this process, so that lack of memory is an error here and not
  // a signal at the first use. Throws CommunicationError.
  void reserve(int64_t first, int64_t bytes) const;
  void seal();  // nobody opens it any more

 private:
  SharedSegment(int descriptor, int64_t bytes, uint64_t id);
  void map();

  int descriptor_;
  int64_t bytes_;
  uint64_t id_;
  char* mapping_ = nullptr;
};

// Collective in a group of ranks on one host: one segment of `ranks` parts of `bytes_per_rank` bytes (a multiple of the
// page size), whose part of this rank is reserved if `reserve`; null on every rank, with the first rank's reason, when
// any rank failed. `gather` is the group's all_gather_text. Ranks that are threads of one process share one mapping.
struct SharedSegmentRequest {
  int rank = 0;
  int ranks = 1;
  int64_t bytes_per_rank = 0;
  bool reserve = false;
  bool one_process = false;
};
struct SharedSegmentResult {
  std::shared_ptr<SharedSegment> segment;
  std::string reason;
  int failed_rank = -1;  // whose reason it is
};
SharedSegmentResult share_segment(const SharedSegmentRequest& request,
                                  const std::function<std::vector<std::string>(const std::string&)>& gather);

}  // namespace dmuon
