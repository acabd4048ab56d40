// One NCCL call of one rank, driven by polling.
#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_on_host/nccl_channel.h"

namespace cuda_on_host {

enum class NcclKind : int32_t { send, receive, broadcast, all_gather, all_reduce, reduce, reduce_scatter };

struct NcclCall {
  NcclKind kind = NcclKind::send;
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t count = 0;  // as the NCCL function takes it
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t operation = ncclSum;
  int peer = 0;  // or root
};

// What the calls of a communicator share, between the thread that enters them and the device's, which runs them.
struct NcclState {
  std::shared_ptr<NcclChannel> channel;
  int64_t collectives = 0;              // entered so far
  std::vector<int64_t> sent, received;  // to and from each rank
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> error = ncclSuccess;

  void fail(ncclResult_t result, const std::string& text);  // the first time
  std::string what();                                       // of the error

 private:
  std::mutex mutex_;
  std::string what_;
};

class NcclOperation {
 public:
  // Takes its place in the order of the communicator's calls now.
  NcclOperation(std::shared_ptr<NcclState> state, const NcclCall& call);
  // True when it is over: done, aborted, or failed with state.error. Collectives of one group must be polled in their order.
  bool poll();
  bool point_to_point() const { return call_.kind == NcclKind::send || call_.kind == NcclKind::receive; }

 private:
  struct Header;
  Header header() const;
  bool poll_send();
  bool poll_receive();
  bool poll_collective();
  void show();
  bool agree();
  void finish();
  void reduce(int64_t first, int64_t count);

  std::shared_ptr<NcclState> state_;
  NcclCall call_;
  int64_t number_ = 0;
  bool shown_ = false, over_ = false;
};

int64_t nccl_type_bytes(ncclDataType_t type);

}  // namespace cuda_on_host
