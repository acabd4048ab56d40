// Time as a device passes it: the host only queues, so its own clock says nothing about the streams.
#pragma once

#include "dmuon/backend/stream.h"

namespace dmuon {

// What streams of a device are besides Stream: those of a host are not.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // A mark that also knows when the stream passed it.
  virtual Event record_time() = 0;
  // From one such mark to another of the same device; both have happened (DeviceError else). Resolution about a microsecond.
  virtual double seconds_between(const Event& first, const Event& second) const = 0;
};

}  // namespace dmuon
