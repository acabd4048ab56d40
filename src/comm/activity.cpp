#include "comm/activity.h"

#include <vector>

#include "dmuon/core/text.h"

namespace dmuon {

Activity::Scope::Scope(Activity& activity, const Operation& operation, const std::string& group) : activity_(activity) {
  std::lock_guard lock(activity_.mutex_);
  id_ = activity_.next_++;
  activity_.running_.emplace(id_, Entry{operation, &group, std::chrono::steady_clock::now()});
}

Activity::Scope::~Scope() {
  std::lock_guard lock(activity_.mutex_);
  activity_.running_.erase(id_);
}

std::string Activity::describe() const {
  std::lock_guard lock(mutex_);
  if (running_.empty()) return "no collective";
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::string> parts;
  for (const auto& [id, entry] : running_)
    parts.push_back(text(entry.operation.describe(), " of group \"", *entry.group, "\" for ",
                         format_duration(std::chrono::duration<double>(now - entry.start).count())));
  return join(parts, ", ");
}

}  // namespace dmuon
