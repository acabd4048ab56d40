// One port of the switch: a TAP device, whose other side looks like a network card and may be moved into a network
// namespace. Frames come with the virtio header, so that the kernel hands over up to 64 KiB of TCP payload at once and leaves
// checksums out, on both sides alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dmuon::virtual_switch {

// Header included.
constexpr size_t kLargestFrame = 70000;
constexpr size_t kFrameHeader = 10;  // virtio's, which precedes the Ethernet header

class TapPort {
 public:
  // Throws std::runtime_error saying what is missing where the device cannot be made (module tun, /dev/net/tun, rights).
  explicit TapPort(const std::string& name);
  ~TapPort();
  TapPort(TapPort&& other) noexcept;
  TapPort(const TapPort&) = delete;
  TapPort& operator=(const TapPort&) = delete;

  int descriptor() const { return descriptor_; }
  // Bytes read; 0 when nothing waits.
  size_t read(std::span<std::byte> frame);
  // A frame that the receiver's kernel does not take (its device is down, its queue full) is lost, as on a cable.
  void write(std::span<const std::byte> frame);

 private:
  int descriptor_ = -1;
};

// What the frame occupies on a cable: a frame of several TCP segments is as many frames with a header each.
int64_t bytes_on_the_wire(std::span<const std::byte> frame);

// Ethernet addresses as numbers; a group address (broadcast, multicast) has many receivers.
struct Addresses {
  uint64_t destination = 0, source = 0;
  bool to_group = false;
};
Addresses addresses_of(std::span<const std::byte> frame);

// Whether the frame is a bare TCP acknowledgement over IPv4 (no payload, none of SYN, FIN and RST).
bool is_acknowledgement(std::span<const std::byte> frame);

}  // namespace dmuon::virtual_switch
