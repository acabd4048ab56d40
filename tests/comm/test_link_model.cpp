// The times that the virtual switch gives to frames, against times worked out by hand.
#include "support/catch.h"
#include "tools/virtual_switch/link_model.h"

namespace {

using dmuon::virtual_switch::LinkModel;

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000;
constexpr int64_t kMegabit = 1'000'000;

// 1250 bytes at 100 Mbit/s take 100 us.
LinkModel three_ports(int64_t longest_wait = 100 * kMillisecond) {
  LinkModel links(3, longest_wait);
  for (int port = 0; port < 3; ++port) links.set_rate(port, 100 * kMegabit);
  links.set_delay(500 * kMicrosecond);
  return links;
}

TEST_CASE("a frame takes its serialisation once and the delay") {
  LinkModel links = three_ports();
  const int64_t sent = links.send(0, 1250, 7);
  CHECK(sent == 7 + 100 * kMicrosecond);
  CHECK(links.receive(0, 1, 1250, sent) == 7 + 600 * kMicrosecond);
}

TEST_CASE("unlimited links cost the delay alone") {
  LinkModel links(2, kMillisecond);
  links.set_delay(2 * kMillisecond);
  CHECK(links.receive(0, 1, 65536, links.send(0, 65536, 0)) == 2 * kMillisecond);
}

TEST_CASE("frames of one node queue behind each other") {
  LinkModel links = three_ports();
  links.send(0, 1250, 0);
  const int64_t second = links.send(0, 1250, 10 * kMicrosecond);
  CHECK(second == 200 * kMicrosecond);
  CHECK(links.send(0, 1250, kMillisecond) == kMillisecond + 100 * kMicrosecond);  // an idle link saves nothing up
}

TEST_CASE("two senders share the link of one receiver") {
  LinkModel links = three_ports();
  CHECK(links.receive(0, 2, 1250, links.send(0, 1250, 0)) == 600 * kMicrosecond);
  CHECK(links.receive(1, 2, 1250, links.send(1, 1250, 0)) == 700 * kMicrosecond);
}

TEST_CASE("the slower of two links decides") {
  LinkModel links = three_ports();
  links.set_rate(1, 10 * kMegabit);  // 1250 bytes take 1 ms
  CHECK(links.receive(0, 1, 1250, links.send(0, 1250, 0)) == 1500 * kMicrosecond);
  CHECK(links.receive(1, 2, 1250, links.send(1, 1250, 0)) == 1500 * kMicrosecond);
}

TEST_CASE("a frame that would wait too long for its receiver is dropped, and costs it nothing") {
  LinkModel links = three_ports(150 * kMicrosecond);
  REQUIRE(links.receive(0, 2, 2500, links.send(0, 2500, 0)));  // busy until 200 us
  CHECK_FALSE(links.receive(1, 2, 1250, links.send(1, 1250, 0)));
  CHECK(links.receive(1, 2, 1250, links.send(1, 1250, 0)) == 800 * kMicrosecond);  // starts at 100 us, waits 100 us
}

TEST_CASE("a shorter delay lets no frame overtake") {
  LinkModel links = three_ports();
  CHECK(links.receive(0, 1, 1250, links.send(0, 1250, 0)) == 600 * kMicrosecond);
  links.set_delay(0);
  CHECK(links.receive(0, 1, 1250, links.send(0, 1250, 0)) == 600 * kMicrosecond);
  CHECK(links.receive(0, 1, 1250, links.send(0, 1250, kMillisecond)) == kMillisecond + 100 * kMicrosecond);
}

}  // namespace
