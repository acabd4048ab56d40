// The timeline of --trace: one file for the whole job.
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/file.h"
#include "dmuon/core/trace.h"

namespace dmuon {

class TraceOutput {
 public:
  // Collective. Without a path there is no trace. Times of all ranks count from one instant: ranks on the host of rank 0
  // share its clock, clocks of other hosts are set by a collective, as exactly as it ends everywhere at once.
  TraceOutput(Communicator& world, const Path& path);

  Trace* trace() { return trace_.get(); }  // null without a path

  // Collective: rank 0 writes the timeline of all ranks. Once; later calls do nothing. StorageError names the file.
  void write(Communicator& world);
  // After a failure, when ranks can agree on nothing any more: this rank's own timeline, as FILE.rank-N.json. Never throws.
  void write_alone() noexcept;

 private:
  std::string events() const;

  Path path_;
  int rank_;
  std::string process_;
  Trace::Clock::time_point origin_;
  std::unique_ptr<Trace> trace_;
  bool written_ = false;
};

}  // namespace dmuon
