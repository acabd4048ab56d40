#include "dmuon/io/directory_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// When a process began, in clock ticks since boot (proc(5), field 22 of stat): tells a process from a later one with the
// same number. Negative if there is no such process, or only the remains of one that nobody has waited for.
int64_t process_start(int64_t process) {
  std::string stat;
  if (FILE* file = std::fopen(text("/proc/", process, "/stat").c_str(), "re")) {
    char buffer[1024];
    stat.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
    std::fclose(file);
  }
  size_t position = stat.rfind(')');  // the name before it may contain anything
  if (position == std::string::npos) return -1;
  if (position != std::string::npos && position + 2 < stat.size() && stat[position + 2] == 'Z') return -1;
  for (int field = 2; field < 22 && position != std::string::npos; ++field) position = stat.find(' ', position + 1);
  return position == std::string::npos ? -1 : std::strtoll(stat.c_str() + position, nullptr, 10);
}

struct Holder {
  int64_t process = 0;
  int64_t start = -1;
  std::string host, run;

  std::string describe() const { return text("process ", process, " on host ", host, ", run ", run); }
  bool lives_here() const {
    if (host != host_name() || process <= 0) return false;
    if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return false;
    const int64_t now = process_start(process);
    return now >= 0 && (start < 0 || now == start);
  }
};

std::optional<Holder> read_holder(int descriptor) {
  char buffer[4096];
  const ssize_t count = pread(descriptor, buffer, sizeof buffer, 0);
  if (count <= 0) return std::nullopt;
  try {
    const Json content = parse_json(std::string_view(buffer, static_cast<size_t>(count)), "lock");
    return Holder{content.at("process").as_integer(), content.at("process_start").as_integer(), content.at("host").as_string(),
                  content.at("run_id").as_string()};
  } catch (const ConfigError&) {
    return std::nullopt;  // cut off by a kill or a full disk
  }
}

bool is_same_file(int descriptor, const Path& path) {
  struct stat opened {
  }, named{};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

[[noreturn]] void refuse(const Path& directory, const Path& lock, const std::optional<Holder>& holder) {
  const std::string who = holder ? holder->describe() : std::string("a process that is starting or stopping");
  throw ConfigError(text("another run uses this directory: ", directory.string(), " is locked by ", who,
                         ". Stop it or choose another directory; if it is gone for certain, delete ", lock.string()));
}

}  // namespace

DirectoryLock::DirectoryLock(const Path& directory, std::string run_id, double patience_seconds)
    : directory_(directory), path_(directory / ".lock") {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw StorageError(text("cannot create ", directory.string(), ": ", error.message()));
  const auto start = std::chrono::steady_clock::now();
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    const int descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor < 0) throw StorageError(text("cannot create ", path_.string(), ": ", std::strerror(errno)));
    const bool busy =
        flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // other errors: a file system without flock, the text decides
    const std::optional<Holder> holder = read_holder(descriptor);
    if (busy || (holder && (holder->host != host_name() || holder->lives_here()))) {
      close(descriptor);
      // A launcher may return before the last process of the job before has gone.
      if ((!holder || holder->host == host_name()) &&
          std::chrono::steady_clock::now() - start < std::chrono::duration<double>(patience_seconds)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      refuse(directory, path_, holder);
    }
    if (!is_same_file(descriptor, path_) && attempt < 100) {  // its holder removed it between our open and our lock
      close(descriptor);
      continue;
    }
    if (holder) log_warning(text("taking over ", directory.string(), " from ", holder->describe(), ", which is no longer alive"));
    descriptor_ = descriptor;
  }
  const Json content = Json::Object{{"process", static_cast<int64_t>(getpid())},
                                    {"process_start", process_start(getpid())},
                                    {"host", host_name()},
                                    {"run_id", std::move(run_id)}};
  const std::string line = text(content.dump(), "\n");
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()) ||
      fsync(descriptor_) != 0) {
    const int failure = errno;
    close(descriptor_);
    throw StorageError(text("cannot write ", path_.string(), ": ", std::strerror(failure)));
  }
}

DirectoryLock::~DirectoryLock() {
  if (is_same_file(descriptor_, path_)) unlink(path_.c_str());
  close(descriptor_);
}

}  // namespace dmuon
