// Checks that all ranks agree on. A test program of several ranks is `int main` with one MpiChecks; a failed check on
// any rank fails every rank's program, and nobody waits for a rank that left: ranks collect failures locally and agree
// at the end of each section.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/text.h"

namespace dmuon::testing {

class MpiChecks {
 public:
  explicit MpiChecks(Communicator& all) : all_(all) {}

  // Records a failure of this rank unless `ok`; the section goes on, so that collectives stay matched.
  void check(bool ok, const std::string& what) {
    ++checks_;
    if (!ok && failures_.size() < 20) failures_.push_back(text(section_, ": ", what));
    if (!ok) ++failed_;
  }

  // Runs `body` on all ranks and agrees on its outcome; an exception is a failure. Returns whether all ranks passed.
  // A CommunicationError in `body` ends the whole job, because the group is unusable afterwards.
  bool section(const std::string& name, const std::function<void()>& body);

  // Prints the outcome on rank 0 and returns the exit code of main, equal on all ranks.
  int finish();

 private:
  Communicator& all_;
  std::string section_;
  std::vector<std::string> failures_;
  int64_t checks_ = 0;
  int64_t failed_ = 0;
  bool failed_anywhere_ = false;
};

inline bool MpiChecks::section(const std::string& name, const std::function<void()>& body) {
  section_ = name;
  const int64_t failed_before = failed_;
  try {
    body();
  } catch (const CommunicationError& error) {
    std::fprintf(stderr, "rank %d: section \"%s\": %s\n", all_.rank(), name.c_str(), error.what());
    all_.abort(ExitCode::communication);
  } catch (const std::exception& error) {
    check(false, text("unexpected exception: ", error.what()));
  }
  const std::string mine = failed_ == failed_before ? "" : join(failures_, "\n    ");
  const std::vector<std::string> everybody = all_.all_gather_text(mine);
  bool passed = true;
  for (size_t rank = 0; rank < everybody.size(); ++rank) {
    if (everybody[rank].empty()) continue;
    passed = false;
    if (all_.rank() == 0) std::fprintf(stderr, "FAILED on rank %zu:\n    %s\n", rank, everybody[rank].c_str());
  }
  failures_.clear();
  failed_anywhere_ |= !passed;
  return passed;
}

inline int MpiChecks::finish() {
  const double mine[] = {static_cast<double>(checks_), static_cast<double>(failed_)};
  const std::vector<double> sums = all_.all_reduce(mine, ReduceOperation::sum);
  if (all_.rank() == 0) std::printf("%.0f checks on %d ranks, %.0f failed\n", sums[0], all_.size(), sums[1]);
  return failed_anywhere_ || sums[1] > 0 || sums[0] < 1 ? 1 : 0;
}

}  // namespace dmuon::testing
