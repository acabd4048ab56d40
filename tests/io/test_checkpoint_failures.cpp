// Kills, full disks and directories that cannot be written: what was published stays loadable.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "io/checkpoint_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

// Runs `action` in a child process; its wait status. Exit code 0 if it returned, 9 if it threw.
int in_child(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      action();
    } catch (...) {
      _exit(9);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

// Four megabytes: more than the small disks below hold.
std::vector<RankTensors> large(int64_t step) {
  return {{{make_tensor("a", DType::float32, Shape{1024, 512}, step), make_tensor("b", DType::float32, Shape{1024, 512}, step)}, {}}};
}

// Two megabytes mounted on a directory, where that is permitted.
struct SmallDisk {
  explicit SmallDisk(const Path& path) : path(path), mounted(mount("dmuon-test", path.c_str(), "tmpfs", 0, "size=2m") == 0) {}
  ~SmallDisk() {
    if (mounted) umount2(path.c_str(), MNT_DETACH);
  }
  Path path;
  bool mounted;
};

// A save that must fail with StorageError; its message.
std::string failing_save(const Path& directory, int64_t step, const std::vector<RankTensors>& tensors) {
  CheckpointWriter writer({directory, step, "run1", 0});
  const std::string message = message_of<StorageError>([&] {
    writer.begin();
    const Json fragment = writer.write_tensors(model_file_name(0, 1), tensors[0].model);
    writer.publish({fragment, writer.write_text("train_state.json", "{}")}, {});
  });
  writer.abandon();
  return message;
}

}  // namespace

TEST_CASE("a kill at every point of a save leaves a complete checkpoint") {
  bool published = false;
  for (const std::string& point : CrashPoints::names()) {
    INFO(point);
    TemporaryDirectory directory;
    for (const int64_t step : {10, 20}) save_checkpoint(directory.path(), step, "first");
    const int status = in_child([&] {
      setenv("DMUON_CRASH_AT", point.c_str(), 1);
      const CrashPoints crash = CrashPoints::from_environment(0);
      DirectoryLock lock(directory.path(), "second");
      save_checkpoint(directory.path(), 30, "second", crash);
      apply_retention(directory.path(), {.keep_last = 1}, "second", crash);
    });
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGKILL);

    published = published || point == "after_rename";
    const auto newest = find_checkpoint(directory.path());
    REQUIRE(newest.has_value());
    CHECK(newest->filename() == (published ? "step-00000030" : "step-00000020"));
    CHECK(content_is_right(*newest));
    for (const auto& candidate : scan_checkpoints(directory.path())) CHECK(candidate.problem.empty());  // nothing gutted is listed

    // The next start takes the lock over, cleans up and saves the same step.
    DirectoryLock lock(directory.path(), "third");
    remove_leftovers(directory.path(), lock);
    for (const std::string& name : names_in(directory.path()))
      CHECK((name == ".lock" || name == "latest" || name.starts_with("step-000000")));
    if (!published) CHECK(content_is_right(save_checkpoint(directory.path(), 30, "third")));
    apply_retention(directory.path(), {.keep_last = 1}, "third");
    CHECK(list_checkpoints(directory.path()).size() == 1);
    CHECK(find_checkpoint(directory.path())->filename() == "step-00000030");
  }
  CHECK(published);
}

TEST_CASE("a crash point can be meant for one rank") {
  CHECK(in_child([] { CrashPoints("after_begin:rank=2", 1).at("after_begin"); }) == 0);
  CHECK(in_child([] { CrashPoints("after_begin:rank=2", 2).at("before_begin"); }) == 0);
  CHECK(WTERMSIG(in_child([] { CrashPoints("after_begin:rank=2", 2).at("after_begin"); })) == SIGKILL);
  CHECK(in_child([] { CrashPoints().at("after_begin"); }) == 0);
}

TEST_CASE("a save that meets a file size limit fails with a named error and leaves the previous checkpoint") {
  TemporaryDirectory directory;
  const Path previous = save_checkpoint(directory.path(), 1);
  const int status = in_child([&] {
    const rlimit limit{1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(8);
    const std::string message = failing_save(directory.path(), 2, large(2));
    if (!contains(message, "step-00000002.tmp-run1/model-00001-of-00001.safetensors")) _exit(7);
    if (!contains(message, "File too large")) _exit(6);
  });
  CHECK(status == 0);
  CHECK(find_checkpoint(directory.path()) == previous);
  CHECK(content_is_right(previous));
  CHECK(names_in(directory.path()) == std::vector<std::string>{"latest", "step-00000001"});
}

TEST_CASE("a full disk: the error names path, wanted and free bytes, the previous checkpoint stays whole") {
  TemporaryDirectory directory;
  // Where mounting is allowed the disk is really full; elsewhere /dev/full stands in for it. Neither way is skipped.
  if (const SmallDisk disk(directory.path()); disk.mounted) {
    const Path previous = save_checkpoint(directory.path(), 1);
    const std::string preflight = message_of<StorageError>([&] { check_free_space(directory.path(), 4 << 20); });
    const std::string message = failing_save(directory.path(), 2, large(2));
    CHECK(contains(preflight, directory.path().string()));
    CHECK(contains(preflight, "4.40 MB wanted"));
    CHECK(contains(preflight, "free"));
    CHECK(contains(message, "step-00000002.tmp-run1/model-00001-of-00001.safetensors"));
    CHECK(contains(message, "No space left on device"));
    CHECK(contains(message, "wanted"));
    CHECK(contains(message, "free on the file system"));
    CHECK(find_checkpoint(directory.path()) == previous);
    CHECK(content_is_right(previous));
    CHECK(names_in(directory.path()) == std::vector<std::string>{"latest", "step-00000001"});
  }
  const std::string message = message_of<StorageError>([] {
    OutputFile file("/dev/full");
    file.write("content");
    file.close();
  });
  CHECK(contains(message, "/dev/full"));
  CHECK(contains(message, "No space left on device"));
  CHECK(contains(message, "wanted"));
}

TEST_CASE("free space is checked for a directory that does not exist yet") {
  TemporaryDirectory directory;
  CHECK_NOTHROW(check_free_space(directory / "a/b/c", 1000));
  CHECK_NOTHROW(check_free_space("relative-and-absent", 0));
  const std::string message = message_of<StorageError>([&] { check_free_space(directory / "a/b/c", INT64_MAX); });
  CHECK(contains(message, "a/b/c"));
  CHECK(contains(message, "free"));
  CHECK_THROWS_AS(check_free_space(directory.path(), -1), StorageError);
}

TEST_CASE("an unwritable directory is named") {
  TemporaryDirectory directory;
  const Path previous = save_checkpoint(directory.path(), 1);
  std::string message;
  if (geteuid() != 0) {
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0500));
    message = failing_save(directory.path(), 2, large(2));
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0700));
  } else {
    // Root passes every permission check, so the child becomes somebody else first.
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
    int channel[2];
    REQUIRE(pipe(channel) == 0);
    const int status = in_child([&] {
      if (setuid(65534) != 0) _exit(8);
      const std::string found = failing_save(directory.path(), 2, large(2));
      if (write(channel[1], found.data(), found.size()) != static_cast<ssize_t>(found.size())) _exit(7);
    });
    CHECK(status == 0);
    char buffer[1024];
    const ssize_t count = read(channel[0], buffer, sizeof buffer);
    message.assign(buffer, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    close(channel[0]);
    close(channel[1]);
  }
  CHECK(contains(message, text("cannot create ", (directory / "step-00000002.tmp-run1").string(), ": Permission denied")));
  CHECK(content_is_right(previous));

  write_bytes(directory / "file", "");
  CHECK(contains(failing_save(directory / "file/checkpoints", 2, large(2)), "Not a directory"));
}

TEST_CASE("a complete checkpoint is never overwritten") {
  TemporaryDirectory directory;
  const Path path = save_checkpoint(directory.path(), 1, "run1");
  const std::string before = read_file(path / "MANIFEST.json");
  const std::string message = message_of<CheckpointError>([&] { save_checkpoint(directory.path(), 1, "run2"); });
  CHECK(contains(message, path.string()));
  CHECK(contains(message, "exists already"));
  CHECK(read_file(path / "MANIFEST.json") == before);
}

TEST_CASE("a provider that throws leaves no checkpoint") {
  TemporaryDirectory directory;
  CheckpointWriter writer({directory.path(), 1, "run", 0});
  writer.begin();
  const CheckpointTensor tensor{"w", DType::float32, Shape{4}, [](int64_t, void*, int64_t) { throw DeviceError("device lost"); }};
  CHECK_THROWS_AS(writer.write_tensors("model-00001-of-00001.safetensors", {tensor}), DeviceError);
  writer.abandon();
  CHECK(names_in(directory.path()).empty());
}
