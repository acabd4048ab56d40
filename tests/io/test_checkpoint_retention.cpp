// Which checkpoints are deleted, and that nothing else is.
#include <fcntl.h>
#include <sys/stat.h>

#include "io/checkpoint_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::vector<int64_t> steps_in(const Path& directory) {
  std::vector<int64_t> steps;
  for (const auto& found : list_checkpoints(directory)) steps.push_back(found.step);
  return steps;
}

void save_steps(const Path& directory, std::initializer_list<int64_t> steps) {
  for (const int64_t step : steps) save_checkpoint(directory, step);
}

}  // namespace

TEST_CASE("the newest steps survive whatever the time stamps say") {
  TemporaryDirectory directory;
  save_steps(directory.path(), {1, 2, 3, 4, 5});
  for (int64_t step = 1; step <= 5; ++step) {  // the oldest step gets the newest time
    const timespec times[2] = {{2'000'000'000 - step, 0}, {2'000'000'000 - step, 0}};
    REQUIRE(utimensat(AT_FDCWD, (directory.path() / checkpoint_name(step)).c_str(), times, 0) == 0);
  }
  CHECK(find_checkpoint(directory.path())->filename() == "step-00000005");
  CHECK(apply_retention(directory.path(), {.keep_last = 2}, "run") ==
        std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003"});
  CHECK(steps_in(directory.path()) == std::vector<int64_t>{4, 5});
  CHECK(names_in(directory.path()) == std::vector<std::string>{"latest", "step-00000004", "step-00000005"});
}

TEST_CASE("a limit of one keeps the newest, zero is refused, fewer than the limit delete nothing") {
  TemporaryDirectory directory;
  CHECK(apply_retention(directory.path(), {.keep_last = 3}, "run").empty());
  save_steps(directory.path(), {1, 2});
  CHECK(apply_retention(directory.path(), {.keep_last = 3}, "run").empty());
  CHECK_THROWS_AS(apply_retention(directory.path(), {.keep_last = 0}, "run"), ConfigError);
  apply_retention(directory.path(), {.keep_last = 1}, "run");
  CHECK(steps_in(directory.path()) == std::vector<int64_t>{2});
}

TEST_CASE("pinned steps, every n-th step and the one resumed from stay") {
  TemporaryDirectory directory;
  save_steps(directory.path(), {5, 10, 15, 20, 25, 30, 35});
  const RetentionPolicy policy{
      .keep_last = 1, .keep_every = 10, .pinned_steps = {15}, .resumed_from = directory.path() / checkpoint_name(5)};
  apply_retention(directory.path(), policy, "run");
  CHECK(steps_in(directory.path()) == std::vector<int64_t>{5, 10, 15, 20, 30, 35});
}

TEST_CASE("incomplete and foreign directories neither count nor disappear") {
  TemporaryDirectory directory;
  save_steps(directory.path(), {1, 2, 3, 50});
  std::filesystem::remove(directory.path() / "step-00000050" / "train_state.json");
  for (const char* name : {"step_00000099", "step-00000099", "notes", "step-00000060.tmp-other"})
    std::filesystem::create_directories(directory / name);
  apply_retention(directory.path(), {.keep_last = 2}, "run");
  CHECK(steps_in(directory.path()) == std::vector<int64_t>{2, 3});
  CHECK(names_in(directory.path()) == std::vector<std::string>{"latest", "notes", "step-00000002", "step-00000003", "step-00000050",
                                                               "step-00000060.tmp-other", "step-00000099", "step_00000099"});
}

TEST_CASE("one deletion that fails does not stop the others") {
  TemporaryDirectory directory;
  save_steps(directory.path(), {1, 2, 3, 4});
  std::filesystem::create_directories(directory / ".trash-step-00000001-run");  // the name it would be renamed to
  write_bytes(directory / ".trash-step-00000001-run/file", "");
  CHECK(apply_retention(directory.path(), {.keep_last = 2}, "run") == std::vector<std::string>{"step-00000002"});
  CHECK(steps_in(directory.path()) == std::vector<int64_t>{1, 3, 4});
}

TEST_CASE("leftovers of interrupted runs are removed under the lock of that directory only") {
  TemporaryDirectory directory;
  save_steps(directory.path(), {1});
  for (const char* name : {"step-00000002.tmp-dead", ".trash-step-00000003-dead", "user.tmp-file", "step-x.tmp-dead"}) {
    std::filesystem::create_directories(directory / name);
    write_bytes(directory / name / "file", "x");
  }
  write_bytes(directory / "latest.tmp-123", "half");
  {
    TemporaryDirectory other;
    DirectoryLock lock(other.path(), "run");
    CHECK_THROWS_AS(remove_leftovers(directory.path(), lock), ConfigError);
  }
  DirectoryLock lock(directory.path(), "run");
  CHECK(remove_leftovers(directory.path(), lock) ==
        std::vector<std::string>{".trash-step-00000003-dead", "latest.tmp-123", "step-00000002.tmp-dead"});
  CHECK(names_in(directory.path()) == std::vector<std::string>{".lock", "latest", "step-00000001", "step-x.tmp-dead", "user.tmp-file"});
}
