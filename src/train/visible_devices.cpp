#include "train/visible_devices.h"

#include <map>
#include <set>
#include <sstream>

namespace dmuon {
namespace {

// As CUDA reads the list: -1, or nothing between two commas, ends it.
std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ',');) {
    const size_t begin = entry.find_first_not_of(" \t"), end = entry.find_last_not_of(" \t");
    if (begin == std::string::npos) break;
    entry = entry.substr(begin, end - begin + 1);
    if (entry == "-1") break;
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

std::vector<int> share_out_devices(const std::vector<VisibleDevices>& ranks) {
  std::map<std::string, std::set<std::string>> taken;  // by host
  std::vector<int> places;
  for (const VisibleDevices& rank : ranks) {
    std::set<std::string>& gone = taken[rank.host];
    int place = 0;
    if (!rank.list) {
      while (!gone.insert(std::to_string(place)).second) ++place;
    } else {
      const std::vector<std::string> entries = entries_of(*rank.list);
      size_t next = 0;
      while (next < entries.size() && !gone.insert(entries[next]).second) ++next;
      place = next < entries.size() ? static_cast<int>(next) : 0;
    }
    places.push_back(place);
  }
  return places;
}

}  // namespace dmuon
