#include "tap_port.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace dmuon::virtual_switch {
namespace {

constexpr size_t kEthernetHeader = 14;

// virtio_net_hdr of linux/virtio_net.h, which no C++ compiler takes: a member is called "class".
struct VirtioHeader {
  uint8_t flags, segmentation;  // segmentation: 0 if the frame is one segment
  uint16_t header_bytes, segment_bytes, checksum_start, checksum_offset;
};
static_assert(sizeof(VirtioHeader) == kFrameHeader);

[[noreturn]] void fail(const std::string& what, const std::string& remedy) {
  throw std::runtime_error(what + ": " + std::strerror(errno) + "; " + remedy);
}

}  // namespace

TapPort::TapPort(const std::string& name) {
  if (name.size() >= IFNAMSIZ)
    throw std::runtime_error("the device name \"" + name + "\" has more than 15 characters; choose a shorter prefix");
  descriptor_ = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0)
    fail("cannot open /dev/net/tun", "load the module tun (modprobe tun), make the device (mknod /dev/net/tun c 10 200) and be root");
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  const char* remedy = "the kernel or container must allow network devices (CAP_NET_ADMIN), and the name must be free";
  if (ioctl(descriptor_, TUNSETIFF, &request) < 0) fail("cannot make the network device " + name, remedy);
  if (ioctl(descriptor_, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) fail("cannot set offloads of " + name, remedy);
}

TapPort::~TapPort() {
  if (descriptor_ >= 0) close(descriptor_);
}

TapPort::TapPort(TapPort&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

size_t TapPort::read(std::span<std::byte> frame) {
  const ssize_t bytes = ::read(descriptor_, frame.data(), frame.size());
  return bytes < static_cast<ssize_t>(kFrameHeader + kEthernetHeader) ? 0 : static_cast<size_t>(bytes);
}

void TapPort::write(std::span<const std::byte> frame) {
  [[maybe_unused]] const ssize_t taken = ::write(descriptor_, frame.data(), frame.size());
}

int64_t bytes_on_the_wire(std::span<const std::byte> frame) {
  VirtioHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  const int64_t bytes = static_cast<int64_t>(frame.size() - kFrameHeader);
  const int64_t headers = header.header_bytes;  // Ethernet, IP and TCP; not in segment_bytes
  if (header.segmentation == 0 || header.segment_bytes == 0 || bytes <= headers) return bytes;
  const int64_t segments = (bytes - headers + header.segment_bytes - 1) / header.segment_bytes;
  return bytes + (segments - 1) * headers;
}

Addresses addresses_of(std::span<const std::byte> frame) {
  const auto number = [&](size_t offset) {
    uint64_t value = 0;
    for (size_t i = 0; i < 6; ++i) value = value << 8 | std::to_integer<uint64_t>(frame[kFrameHeader + offset + i]);
    return value;
  };
  return {.destination = number(0), .source = number(6), .to_group = (frame[kFrameHeader] & std::byte{1}) != std::byte{0}};
}

bool is_acknowledgement(std::span<const std::byte> frame) {
  const auto packet = frame.subspan(kFrameHeader);
  const auto byte = [&](size_t offset) { return std::to_integer<size_t>(packet[offset]); };
  constexpr size_t ip = kEthernetHeader, shortest = kEthernetHeader + 20 + 20;
  if (packet.size() < shortest || byte(12) != 0x08 || byte(13) != 0x00 || byte(ip) >> 4 != 4 || byte(ip + 9) != 6) return false;
  const size_t tcp = ip + 4 * (byte(ip) & 15);
  if (packet.size() < tcp + 20) return false;
  const size_t packet_bytes = byte(ip + 2) << 8 | byte(ip + 3), header_bytes = tcp - ip + 4 * (byte(tcp + 12) >> 4);
  return packet_bytes == header_bytes && (byte(tcp + 13) & 0x17) == 0x10;  // of ACK, RST, SYN and FIN the first alone
}

}  // namespace dmuon::virtual_switch
