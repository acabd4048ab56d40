#include "dmuon/io/crash_points.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

CrashPoints::CrashPoints(std::string_view setting, int rank) {
  if (setting.empty()) return;
  const std::string_view point = setting.substr(0, setting.find(':'));
  const auto& all = names();
  if (std::find(all.begin(), all.end(), point) == all.end()) {
    const std::string close = nearest(point, all);
    throw ConfigError(text("DMUON_CRASH_AT: unknown point \"", point, "\"", close.empty() ? "" : text("; did you mean \"", close, "\"?")));
  }
  if (point.size() < setting.size()) {
    constexpr std::string_view prefix = ":rank=";
    const std::string_view rest = setting.substr(point.size());
    int wanted = -1;
    const char* end = rest.data() + rest.size();
    if (!rest.starts_with(prefix) || std::from_chars(rest.data() + prefix.size(), end, wanted).ptr != end || wanted < 0)
      throw ConfigError(text("DMUON_CRASH_AT: expected <point>[:rank=<rank>], found \"", setting, "\""));
    if (wanted != rank) return;
  }
  armed_ = point;
}

CrashPoints CrashPoints::from_environment(int rank) {
  const char* setting = std::getenv("DMUON_CRASH_AT");
  return CrashPoints(setting != nullptr ? setting : "", rank);
}

const std::vector<std::string>& CrashPoints::names() {
  static const std::vector<std::string> all = {"before_begin",     "after_begin",    "mid_tensor_file", "after_tensor_file", "after_state",
                                               "before_manifest",  "after_manifest", "before_rename",   "after_rename",      "after_latest",
                                               "before_retention", "mid_retention",  "after_retention"};
  return all;
}

void CrashPoints::at(std::string_view point) const {
  if (armed_ != point) return;
  kill(getpid(), SIGKILL);
  for (;;) pause();  // the signal may be delivered to another thread first
}

}  // namespace dmuon
