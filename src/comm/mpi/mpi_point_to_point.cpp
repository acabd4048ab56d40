#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

#include "comm/mpi/mpi_session.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int notice_tag = PointToPoint::maximum_tag + 1;
constexpr size_t longest_notice = 2048;  // below every eager limit: it leaves without the receiver's help

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, reason, &length);
  throw CommunicationError(text("MPI failed in ", what, ": ", reason));
}

bool mpi_usable() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

class MpiRequest final : public MessageRequest {
 public:
  MpiRequest(int64_t bytes, bool receiving) : bytes_(bytes), receiving_(receiving) {}
  ~MpiRequest() override {
    if (request == MPI_REQUEST_NULL || !mpi_usable()) return;
    if (receiving_) MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  bool done() override {
    int flag = 0;
    MPI_Status status;
    check(MPI_Test(&request, &flag, &status), receiving_ ? "a receive" : "a send");
    if (!flag) return false;
    if (receiving_) {
      int count = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
      if (count != bytes_) throw CommunicationError(text("a message of ", count, " bytes came where ", bytes_, " were expected"));
    }
    return true;
  }

  MPI_Request request = MPI_REQUEST_NULL;

 private:
  int64_t bytes_;
  bool receiving_;
};

class MpiPointToPoint final : public PointToPoint {
 public:
  // Takes over `communicator`.
  explicit MpiPointToPoint(MPI_Comm communicator) : communicator_(communicator) {
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  }
  // Freeing is collective and could wait for peers that are gone; after a failure the process ends anyway.
  ~MpiPointToPoint() override {
    notice_requests_.clear();
    if (!gave_up_ && std::uncaught_exceptions() == 0 && mpi_usable()) MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<MessageRequest> send(const void* data, int64_t bytes, int peer, int tag) override {
    auto request = std::make_unique<MpiRequest>(bytes, false);
    check(MPI_Isend(data, count_of(bytes), MPI_BYTE, peer, tag, communicator_, &request->request), "MPI_Isend");
    return request;
  }
  std::unique_ptr<MessageRequest> receive(void* data, int64_t bytes, int peer, int tag) override {
    auto request = std::make_unique<MpiRequest>(bytes, true);
    check(MPI_Irecv(data, count_of(bytes), MPI_BYTE, peer, tag, communicator_, &request->request), "MPI_Irecv");
    return request;
  }

  // A failing transport must not hide the error that the notice is about: results are not checked.
  void send_notice(const std::string& message) override {
    std::lock_guard lock(mutex_);
    gave_up_ = true;
    notice_texts_.push_back(std::make_unique<std::string>(message.substr(0, longest_notice)));
    const std::string& kept = *notice_texts_.back();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      auto request = std::make_unique<MpiRequest>(static_cast<int64_t>(kept.size()), false);
      MPI_Isend(kept.data(), static_cast<int>(kept.size()), MPI_BYTE, peer, notice_tag, communicator_, &request->request);
      notice_requests_.push_back(std::move(request));
    }
  }

  std::optional<Notice> poll_notice() override {
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, notice_tag, communicator_, &flag, &message, &status), "MPI_Improbe");
    if (!flag) return std::nullopt;
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    Notice notice{status.MPI_SOURCE, std::string(static_cast<size_t>(count), ' ')};
    check(MPI_Mrecv(notice.message.data(), count, MPI_BYTE, &message, &status), "MPI_Mrecv");
    return notice;
  }

  // All ranks have just exchanged messages about the split, so MPI's own blocking exchange follows at once.
  std::shared_ptr<PointToPoint> subgroup(std::span<const int> members, int64_t) override {
    int position = 0;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i] == rank_) position = static_cast<int>(i);
    MPI_Comm communicator = MPI_COMM_NULL;
    check(MPI_Comm_split(communicator_, members.front(), position, &communicator), "MPI_Comm_split");
    return std::make_shared<MpiPointToPoint>(communicator);
  }

  [[noreturn]] void abort(ExitCode code) override {
    std::fflush(nullptr);
    if (mpi_usable()) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    std::_Exit(static_cast<int>(code));
  }

 private:
  static int count_of(int64_t bytes) {
    if (bytes < 0 || bytes > maximum_message_bytes) throw CommunicationError(text("a single message of ", bytes, " bytes"));
    return static_cast<int>(bytes);
  }

  MPI_Comm communicator_;
  int rank_ = 0;
  int size_ = 1;
  std::mutex mutex_;
  bool gave_up_ = false;
  std::vector<std::unique_ptr<std::string>> notice_texts_;
  std::vector<std::unique_ptr<MpiRequest>> notice_requests_;
};

const char* level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "an unknown level";
  }
}

}  // namespace

std::shared_ptr<PointToPoint> start_mpi() {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized)
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  else
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE)
    throw CommunicationError(text(mpi_description(), " gives ", level_name(provided),
                                  " where dmuon needs MPI_THREAD_MULTIPLE (its communication streams call MPI from threads of their "
                                  "own); use an MPI built with thread support"));
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return std::make_shared<MpiPointToPoint>(world);
}

void finish_mpi() {
  if (mpi_usable()) MPI_Finalize();
}

std::string mpi_description() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string all(version, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace dmuon
