// Starts programs of several ranks from a test and watches how they end.
#pragma once

#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "dmuon/core/text.h"

namespace dmuon::testing {

struct Ended {
  int exit_code = 0;   // of mpirun, or of the program alone; 124 or 137: the time limit
  std::string output;  // stdout and stderr together
  double seconds = 0;

  // The last line that the ranks printed, as against mpirun's own banner. Ranks' lines start with "dmuon: ".
  std::string last_of_ranks() const {
    const size_t at = output.rfind("dmuon: ");
    return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
  }
};

// `command` is a shell command line; it and its children are ended after `limit_seconds`.
inline Ended run_command(const std::string& command, int limit_seconds) {
  const auto start = std::chrono::steady_clock::now();
  const std::string limited = text("timeout -k 2 ", limit_seconds, " env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ",
                                   "OMP_NUM_THREADS=1 ", command, " 2>&1 </dev/null");
  Ended ended;
  FILE* pipe = popen(limited.c_str(), "r");
  if (pipe == nullptr) return {126, "popen failed", 0};
  std::array<char, 4096> buffer{};
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) ended.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ended;
}

// `program_and_arguments` on `ranks` ranks under `mpiexec` (DMUON_MPIEXEC, a definition of the test).
inline Ended run_ranks_of(const std::string& mpiexec, int ranks, const std::string& program_and_arguments, int limit_seconds) {
  return run_command(text(mpiexec, " --oversubscribe --bind-to none -np ", ranks, " ", program_and_arguments), limit_seconds);
}

}  // namespace dmuon::testing
