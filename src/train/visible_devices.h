// Which of the GPUs that a rank sees it takes, decided by the ranks of a host together.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dmuon {

// A rank's CUDA_VISIBLE_DEVICES; none where it is not set, so that the rank sees every GPU of its host by number.
struct VisibleDevices {
  std::string host;
  std::optional<std::string> list;
};

// For every rank the place, in its own list, of the GPU it takes: in the order of the ranks, the first entry that no earlier rank of
// its host has taken. So ranks with one list share it out in their order, ranks with lists of their own take the first entry,
// and of lists that overlap no entry is taken twice while there are others. A rank for which none is left takes the first entry: in
// a container the same number may mean another GPU, and where it does not, two ranks on one GPU are refused later.
std::vector<int> share_out_devices(const std::vector<VisibleDevices>& ranks);

}  // namespace dmuon
