#include "link_model.h"

#include <algorithm>

namespace dmuon::virtual_switch {

LinkModel::LinkModel(int ports, int64_t longest_wait) : ports_(static_cast<size_t>(ports)), longest_wait_(longest_wait) {}

void LinkModel::set_rate(int port, int64_t bits_per_second) { ports_[static_cast<size_t>(port)].bits_per_second = bits_per_second; }

int64_t LinkModel::serialisation(const Port& port, int64_t bytes) {
  if (port.bits_per_second == 0) return 0;
  return static_cast<int64_t>(8e9 * static_cast<double>(bytes) / static_cast<double>(port.bits_per_second));
}

int64_t LinkModel::send(int port, int64_t bytes, int64_t ready) {
  Port& from = ports_[static_cast<size_t>(port)];
  from.sent = std::max(from.sent, ready) + serialisation(from, bytes);
  return from.sent;
}

std::optional<int64_t> LinkModel::receive(int from, int to, int64_t bytes, int64_t sent) {
  const int64_t first_bit = sent - serialisation(ports_[static_cast<size_t>(from)], bytes);
  Port& port = ports_[static_cast<size_t>(to)];
  const int64_t start = std::max(first_bit, port.received);
  if (start - first_bit > longest_wait_) return std::nullopt;
  port.received = std::max(sent, start + serialisation(port, bytes));
  port.arrived = std::max(port.arrived, port.received + delay_);  // a delay that became shorter reorders nothing
  return port.arrived;
}

}  // namespace dmuon::virtual_switch
