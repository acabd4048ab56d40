// Two runs on one directory.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dmuon/io/directory_lock.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string lock_text(int64_t process, int64_t start, const std::string& on_host) {
  return text("{\"process\":", process, ",\"process_start\":", start, ",\"host\":\"", on_host, "\",\"run_id\":\"earlier\"}\n");
}

}  // namespace

TEST_CASE("a second run on a directory is refused with the holder's name, then admitted when the first ends") {
  TemporaryDirectory directory;
  {
    DirectoryLock first(directory / "checkpoints", "first");
    const std::string message = message_of<ConfigError>([&] { DirectoryLock second(directory / "checkpoints", "second"); });
    CHECK(contains(message, "another run uses this directory"));
    CHECK(contains(message, text("process ", getpid(), " on host ", host(), ", run first")));
    CHECK(contains(message, (directory / "checkpoints/.lock").string()));
  }
  CHECK_FALSE(std::filesystem::exists(directory / "checkpoints/.lock"));
  CHECK_NOTHROW(DirectoryLock(directory / "checkpoints", "second"));
}

TEST_CASE("another process holds the lock until it is killed") {
  TemporaryDirectory directory;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    DirectoryLock lock(directory.path(), "child");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  close(ready[1]);
  CHECK(contains(message_of<ConfigError>([&] { DirectoryLock lock(directory.path(), "mine"); }), text("process ", child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(std::filesystem::exists(directory / ".lock"));
  CHECK_NOTHROW(DirectoryLock(directory.path(), "mine"));
}

TEST_CASE("the text of a lock decides where the kernel's lock is gone") {
  TemporaryDirectory directory;
  const Path file = directory / ".lock";
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const auto refused = [&](const std::string& content) {
    write_bytes(file, content);
    return message_of<ConfigError>([&] { DirectoryLock lock(directory.path(), "mine"); });
  };
  CHECK(refused(lock_text(dead, -1, host())).empty());
  CHECK(refused(lock_text(getpid(), 1, host())).empty());                           // the number was given to another process since
  CHECK(contains(refused(lock_text(getpid(), -1, host())), "another run"));         // lives, as far as anybody can tell
  CHECK(contains(refused(lock_text(dead, -1, "elsewhere")), "on host elsewhere"));  // nobody here can tell
  CHECK(contains(refused(lock_text(dead, -1, "elsewhere")), "delete"));
  CHECK(refused("").empty());
  CHECK(refused("{\"process\":1,").empty());  // cut off by a kill
}

TEST_CASE("a directory that cannot be locked is named") {
  TemporaryDirectory directory;
  write_bytes(directory / "file", "");
  CHECK(contains(message_of<StorageError>([&] { DirectoryLock lock(directory / "file", "run"); }), "file"));
  std::filesystem::create_symlink("/dev/null", directory / ".lock");
  CHECK(contains(message_of<StorageError>([&] { DirectoryLock lock(directory.path(), "run"); }), ".lock"));
}
