// How the ranks of a stand-in NCCL communicator meet: one sparse file in memory, named by the unique id, with a page of
// counters and a place for what each rank shows to all, and each pair to each other.
//
// A place holds one message. Its writer fills it when the readers of the one before are done, and counts `written`; a reader
// takes it and counts `read`. Nothing here blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cuda_on_host {

class NcclChannel {
 public:
  // A name that no other communicator of the host has; the file exists from now on.
  static std::string create();
  // Null when there is no such file.
  static std::shared_ptr<NcclChannel> join(const std::string& name, int rank, int ranks);
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // True once all ranks have joined; the file's name is gone then.
  bool complete();

  // Places: the one of a rank that all read, and the one from a rank to another.
  int common(int rank) const { return rank; }
  int pair(int from, int to) const { return ranks_ + from * ranks_ + to; }

  struct Counters {
    std::atomic<int64_t> written{0};
    std::atomic<int64_t> read{0};  // a common place: by every rank together, so `ranks` times per message
  };
  Counters& counters(int place) { return counters_[place]; }
  void write(int place, int64_t offset, const void* data, int64_t bytes);
  void read(int place, int64_t offset, void* data, int64_t bytes);

 private:
  NcclChannel() = default;

  std::string path_;
  int rank_ = 0, ranks_ = 0, file_ = -1;
  int64_t mapped_bytes_ = 0;
  std::atomic<int64_t>* joined_ = nullptr;
  Counters* counters_ = nullptr;
  bool complete_ = false;
};

}  // namespace cuda_on_host
