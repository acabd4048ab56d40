#include "dmuon/core/measurement_cache.h"

#include <sys/wait.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "dmuon/core/log.h"
#include "io/io_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

const MeasurementKey key{"AMD EPYC 7B13", "avx2", "oneDNN 2.6.3", 2};

// The lines that `body` logs at warning or above.
template <class Body>
std::vector<std::string> warnings_of(const Body& body) {
  TemporaryDirectory directory;
  const Path file = directory / "log";
  configure_log({.rank = 0, .ranks = 1, .level = LogLevel::error, .file = file.string()});
  body();
  configure_log({});
  std::vector<std::string> lines;
  std::string content = read_file(file), line;
  for (std::istringstream in(content); std::getline(in, line);) lines.push_back(line);
  return lines;
}

Path saved(const Path& directory, const MeasurementKey& of = key) {
  MeasurementCache cache("newton_schulz", of, directory);
  cache.set("768x3072", Json(1.0 / 3.0));
  cache.save();
  return cache.path();
}

void replace(const Path& path, const std::string& from, const std::string& to) {
  std::string content = read_file(path);
  const size_t at = content.find(from);
  REQUIRE(at != std::string::npos);
  write_bytes(path, content.replace(at, from.size(), to));
}

}  // namespace

TEST_CASE("measurements come back bit for bit, also by another process's object") {
  TemporaryDirectory directory;
  const auto lines = warnings_of([&] {
    MeasurementCache first("newton_schulz", key, directory / "new/below");
    CHECK(first.find("768x3072") == nullptr);
    Json choice = Json::object();
    choice.set("batch", 4);
    choice.set("seconds", 0.1);
    first.set("768x3072", choice);
    CHECK(*first.find("768x3072") == choice);
    first.save();
    MeasurementCache second("newton_schulz", key, directory / "new/below");
    REQUIRE(second.find("768x3072") != nullptr);
    CHECK(*second.find("768x3072") == choice);
    CHECK(second.find("768x3073") == nullptr);
    CHECK(second.ignored().empty());
    CHECK(first.path() == second.path());
  });
  CHECK(lines.empty());
}

TEST_CASE("another kind, processor, instruction set, library or number of threads is another file") {
  TemporaryDirectory directory;
  saved(directory.path());
  for (const MeasurementKey& other :
       {MeasurementKey{"AMD EPYC 7B12", "avx2", "oneDNN 2.6.3", 2}, MeasurementKey{"AMD EPYC 7B13", "baseline", "oneDNN 2.6.3", 2},
        MeasurementKey{"AMD EPYC 7B13", "avx2", "oneDNN 2.7.0", 2}, MeasurementKey{"AMD EPYC 7B13", "avx2", "oneDNN 2.6.3", 1}})
    CHECK(MeasurementCache("newton_schulz", other, directory.path()).find("768x3072") == nullptr);
  CHECK(MeasurementCache("owner_update", key, directory.path()).find("768x3072") == nullptr);
  CHECK(MeasurementCache("newton_schulz", key, directory.path()).find("768x3072") != nullptr);
}

TEST_CASE("a bad file is ignored with exactly one line, and replaced by the next save") {
  TemporaryDirectory directory;
  const Path path = saved(directory.path());
  const std::string good = read_file(path);
  const auto ignored_for = [&](const std::string& reason) {
    INFO(reason);
    const auto lines = warnings_of([&] {
      MeasurementCache cache("newton_schulz", key, directory.path());
      CHECK(contains(cache.ignored(), reason));
      CHECK(cache.find("768x3072") == nullptr);
      cache.set("1x1", 2);
      cache.save();
      cache.save();
      MeasurementCache again("newton_schulz", key, directory.path());
      CHECK(again.ignored().empty());
      CHECK(again.find("1x1") != nullptr);
      CHECK(again.find("768x3072") == nullptr);
    });
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), path.string()));
    CHECK(contains(lines.front(), reason));
    write_bytes(path, good);
  };
  replace(path, "0.333", "0.433");
  ignored_for("checksum");
  for (size_t length : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 2}) {
    write_bytes(path, good.substr(0, length));
    ignored_for(path.filename().string());
  }
  write_bytes(path, std::string(1000, '\0'));
  ignored_for("NUL byte");
  write_bytes(path, "[]");
  ignored_for("array");
  replace(path, "\"version\": 1", "\"version\": 2");
  ignored_for("version 2");
  replace(path, "\"entries\"", "\"entrees\"");
  ignored_for("entries");
  // A file of another machine, brought here under this one's name.
  const Path foreign = saved(directory.path(), {"Intel Xeon", "avx512", "oneDNN 2.6.3", 2});
  write_bytes(path, read_file(foreign));
  ignored_for("Intel Xeon");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  const auto lines = warnings_of([&] { CHECK(contains(MeasurementCache("newton_schulz", key, directory.path()).ignored(), "regular")); });
  CHECK(lines.size() == 1);
}

TEST_CASE("a cache that cannot be written says so once and goes on in memory") {
  TemporaryDirectory directory;
  write_bytes(directory / "file", "");
  const auto lines = warnings_of([&] {
    MeasurementCache cache("newton_schulz", key, directory / "file/cache");
    for (int i = 0; i < 3; ++i) {
      cache.set("a", i);
      cache.save();
    }
    CHECK(cache.find("a")->as_integer() == 2);
  });
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), (directory / "file/cache").string()));

  MeasurementCache memory("newton_schulz", key, {});
  memory.set("a", 1);
  CHECK(warnings_of([&] { memory.save(); }).empty());
  CHECK(memory.path().empty());
}

TEST_CASE("processes and threads that write at once leave one whole file and keep each other's entries") {
  TemporaryDirectory directory;
  const auto write = [&](int writer) {
    for (int i = 0; i < 20; ++i) {
      MeasurementCache cache("newton_schulz", key, directory.path());
      if (!cache.ignored().empty()) return 1;
      cache.set(text("writer ", writer), std::string(static_cast<size_t>(1000 * (writer + 1)), 'x'));
      cache.save();
    }
    return 0;
  };
  std::vector<pid_t> children;
  for (int child = 0; child < 2; ++child)
    if (children.push_back(fork()); children.back() == 0) _exit(write(child));
  int failures[2] = {1, 1};
  std::thread first([&] { failures[0] = write(2); }), second([&] { failures[1] = write(3); });
  first.join();
  second.join();
  CHECK(failures[0] + failures[1] == 0);
  for (pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  // One after another nothing is lost; at once the last writer's view counts, and it holds its own entry.
  write(4);
  write(5);
  MeasurementCache cache("newton_schulz", key, directory.path());
  CHECK(cache.ignored().empty());
  for (int writer : {4, 5}) CHECK(cache.find(text("writer ", writer)) != nullptr);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("an object keeps what others saved after it was read") {
  TemporaryDirectory directory;
  MeasurementCache first("newton_schulz", key, directory.path()), second("newton_schulz", key, directory.path());
  first.set("a", 1);
  first.set("b", 1);
  first.save();
  second.set("b", 2);
  second.save();
  MeasurementCache third("newton_schulz", key, directory.path());
  CHECK(third.find("a")->as_integer() == 1);
  CHECK(third.find("b")->as_integer() == 2);
}

TEST_CASE("the cache directory follows the environment") {
  const auto with = [](const char* cache, const char* home) {
    const std::string old_cache = std::getenv("XDG_CACHE_HOME") ? std::getenv("XDG_CACHE_HOME") : "";
    const std::string old_home = std::getenv("HOME") ? std::getenv("HOME") : "";
    cache ? setenv("XDG_CACHE_HOME", cache, 1) : unsetenv("XDG_CACHE_HOME");
    home ? setenv("HOME", home, 1) : unsetenv("HOME");
    const Path found = default_cache_directory();
    old_cache.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
    old_home.empty() ? unsetenv("HOME") : setenv("HOME", old_home.c_str(), 1);
    return found.string();
  };
  CHECK(with("/x", "/h") == "/x/dmuon");
  CHECK(with(nullptr, "/h") == "/h/.cache/dmuon");
  CHECK(with("relative", "/h") == "/h/.cache/dmuon");  // the specification of XDG_CACHE_HOME: relative paths are ignored
  CHECK(with("", nullptr).empty());
}
