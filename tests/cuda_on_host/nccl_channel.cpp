#include "cuda_on_host/nccl_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace cuda_on_host {
namespace {

constexpr int64_t place_bytes = int64_t{1} << 36;  // of the sparse file
constexpr int64_t page_bytes = 1 << 16;            // counters, before the first place

void require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

}  // namespace

std::string NcclChannel::create() {
  static std::atomic<int> next{0};
  const std::string folder = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  const std::string path = folder + "/dmuon_nccl_on_host_" + std::to_string(getpid()) + "_" + std::to_string(next++);
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  require(file >= 0 && ftruncate(file, page_bytes) == 0, "the file of a stand-in NCCL communicator");
  close(file);
  return path;
}

std::shared_ptr<NcclChannel> NcclChannel::join(const std::string& name, int rank, int ranks) {
  const int file = open(name.c_str(), O_RDWR);
  if (file < 0) return nullptr;
  require(static_cast<int64_t>(sizeof(Counters)) * (ranks + ranks * ranks) + 64 <= page_bytes, "counters of so many ranks");
  std::shared_ptr<NcclChannel> channel(new NcclChannel);
  channel->path_ = name;
  channel->rank_ = rank;
  channel->ranks_ = ranks;
  channel->file_ = file;
  void* page = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(page != MAP_FAILED, "counters of a stand-in NCCL communicator");
  channel->joined_ = static_cast<std::atomic<int64_t>*>(page);
  channel->counters_ = reinterpret_cast<Counters*>(static_cast<char*>(page) + 64);
  ++*channel->joined_;
  return channel;
}

NcclChannel::~NcclChannel() {
  munmap(static_cast<void*>(joined_), page_bytes);
  close(file_);
  if (!complete_ && rank_ == 0) unlink(path_.c_str());
}

bool NcclChannel::complete() {
  if (!complete_ && *joined_ == ranks_) {
    complete_ = true;
    if (rank_ == 0) unlink(path_.c_str());
  }
  return complete_;
}

void NcclChannel::write(int place, int64_t offset, const void* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const auto part = pwrite(file_, static_cast<const char*>(data) + done, static_cast<size_t>(bytes - done),
                             page_bytes + place * place_bytes + offset + done);
    require(part > 0, "writing to a stand-in NCCL communicator");
    done += part;
  }
}

void NcclChannel::read(int place, int64_t offset, void* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const auto part =
        pread(file_, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), page_bytes + place * place_bytes + offset + done);
    require(part > 0, "reading from a stand-in NCCL communicator");
    done += part;
  }
}

}  // namespace cuda_on_host
