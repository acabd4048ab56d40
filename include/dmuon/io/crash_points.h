// Places at which a test can kill a process in the middle of a save, to prove that what was published stays loadable.
// DMUON_CRASH_AT=<point>[:rank=<rank>] ends the process (SIGKILL: no destructor, no flush) when it reaches that point;
// without ":rank=" on every rank that gets there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dmuon {

class CrashPoints {
 public:
  CrashPoints() = default;  // never crashes
  // `setting` as in DMUON_CRASH_AT. ConfigError names an unknown point and the nearest one.
  CrashPoints(std::string_view setting, int rank);
  // Reads DMUON_CRASH_AT; the only place that does.
  static CrashPoints from_environment(int rank);

  // Every point, in the order in which a save passes them:
  //   before_begin         nothing exists yet
  //   after_begin          the temporary directory exists
  //   mid_tensor_file      half of a tensor file's data is written
  //   after_tensor_file    one tensor file is durable
  //   after_state          one text (train state, configuration, ...) is durable
  //   before_manifest      all files are durable, the manifest is not written
  //   after_manifest       the manifest is durable in the temporary directory
  //   before_rename        just before the directory gets its final name
  //   after_rename         published; the hint `latest` is old
  //   after_latest         published, the hint is new
  //   before_retention     before older checkpoints are looked at
  //   mid_retention        one checkpoint is renamed to trash, not yet removed
  //   after_retention      all done
  static const std::vector<std::string>& names();

  void at(std::string_view point) const;

 private:
  std::string armed_;  // empty: none
};

}  // namespace dmuon
