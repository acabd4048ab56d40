#include "core/host_memory.h"

#include <unistd.h>

#include <fstream>

#include "support/catch.h"

using namespace dmuon;

namespace {

// A directory with files as the system would show them.
class Files {
 public:
  Files() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dmuon-host-XXXXXX").string();
    root = mkdtemp(pattern.data());
  }
  ~Files() {
    std::error_code ignored;
    std::filesystem::remove_all(root, ignored);
  }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << content;
  }
  Path root;
};

}  // namespace

TEST_CASE("available memory: nothing to read is no limit") {
  const Files files;
  const AvailableMemory none = available_memory(files.root);
  CHECK_FALSE(none.machine);
  CHECK_FALSE(none.control_group);
  CHECK_FALSE(none.process);
}

TEST_CASE("available memory: what makes no sense is no limit") {
  const Files files;
  files.write("proc/meminfo", "MemTotal: 1 kB\nMemAvailable:   lots kB\nSwapFree: -4 kB\n");
  files.write("proc/self/cgroup", "0::/../../up\nnonsense\n4:memory\n");
  files.write("sys/fs/cgroup/memory.max", "max\n");
  files.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "99999999999999999999999\n");
  files.write("proc/self/limits",
              "Limit  Soft Limit  Hard Limit  Units\nMax address space         unlimited            unlimited            bytes\n");
  files.write("proc/self/statm", "x");
  const AvailableMemory none = available_memory(files.root);
  CHECK_FALSE(none.machine);
  CHECK_FALSE(none.control_group);
  CHECK_FALSE(none.process);
  files.write("proc/meminfo", "MemAvailable: 9223372036854775807 kB\n");
  CHECK_FALSE(available_memory(files.root).machine);
}

TEST_CASE("available memory: of the machine with its free swap, and of the process") {
  const Files files;
  files.write("proc/meminfo", "MemTotal:  100 kB\nMemFree:   10 kB\nMemAvailable:      60 kB\nSwapTotal: 9 kB\nSwapFree:  5 kB\n");
  files.write("proc/self/limits",
              "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max address space         100000000            unlimited            bytes\n");
  files.write("proc/self/statm", "1000 500 3 4 0 5 0\n");
  AvailableMemory available = available_memory(files.root);
  CHECK(available.machine == 65 * 1024);
  CHECK(available.process == 100000000 - 1000 * sysconf(_SC_PAGESIZE));
  files.write("proc/self/statm", "1000000000 500 3 4 0 5 0\n");
  CHECK(available_memory(files.root).process == 0);
}

TEST_CASE("available memory: version 2 of control groups takes the tightest of the groups above, file cache and swap are free") {
  const Files files;
  files.write("proc/self/cgroup", "0::/job/step\n");
  files.write("sys/fs/cgroup/job/memory.max", "5000\n");
  files.write("sys/fs/cgroup/job/memory.current", "3000\n");
  files.write("sys/fs/cgroup/job/memory.stat", "anon 1000\ninactive_file 400\nactive_file 100\n");
  files.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  files.write("sys/fs/cgroup/job/step/memory.current", "10\n");
  AvailableMemory available = available_memory(files.root);
  CHECK(available.control_group == 2500);
  CHECK(available.control_group_path == (files.root / "sys/fs/cgroup/job").string());
  files.write("sys/fs/cgroup/job/step/memory.max", "700\n");
  CHECK(available_memory(files.root).control_group == 690);
  files.write("proc/meminfo", "SwapFree: 1 kB\n");
  CHECK(available_memory(files.root).control_group == 690 + 1024);
  files.write("sys/fs/cgroup/job/step/memory.swap.max", "200\n");
  files.write("sys/fs/cgroup/job/step/memory.swap.current", "150\n");
  CHECK(available_memory(files.root).control_group == 690 + 50);
  // Over its limit already; and a container that sees its own group as the root of the tree.
  files.write("sys/fs/cgroup/job/step/memory.current", "9000\n");
  files.write("sys/fs/cgroup/job/step/memory.swap.max", "0\n");
  CHECK(available_memory(files.root).control_group == 0);
  files.write("proc/self/cgroup", "0::/elsewhere/not/here\n");
  files.write("sys/fs/cgroup/memory.max", "12\n");
  files.write("proc/meminfo", "");
  CHECK(available_memory(files.root).control_group == 12);
}

TEST_CASE("available memory: version 1 of control groups") {
  const Files files;
  files.write("proc/self/cgroup", "5:devices:/\n4:memory:/process/one\n0::/\n");
  files.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  files.write("sys/fs/cgroup/memory/process/memory.limit_in_bytes", "8000\n");
  files.write("sys/fs/cgroup/memory/process/memory.usage_in_bytes", "1000\n");
  files.write("sys/fs/cgroup/memory/process/memory.stat", "cache 3\ninactive_file 1\ntotal_inactive_file 30\ntotal_active_file 5\n");
  files.write("sys/fs/cgroup/memory/process/one/memory.limit_in_bytes", "9000\n");
  CHECK(available_memory(files.root).control_group == 8000 - 965);
}

TEST_CASE("available memory: this machine says something") { CHECK(available_memory().machine.value_or(0) > 0); }
