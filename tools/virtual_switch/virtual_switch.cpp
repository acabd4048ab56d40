// virtual_switch: an Ethernet switch in user space whose links have a rate and a delay, for kernels without the delaying
// queue (netem). scripts/virtual_cluster.sh starts it; a development tool, not installed. Linux only.
//
// Makes one TAP device a port, named PREFIX0, PREFIX1, ...; once they exist it goes to the background and writes its process
// number to --pid-file. The devices go when the process ends. Commands come as lines through the FIFO --control:
//   rate PORT BITS_PER_SECOND     both directions; 0: unlimited
//   delay NANOSECONDS             one way, between any two ports
#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "link_model.h"
#include "tap_port.h"

namespace dmuon::virtual_switch {
namespace {

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// What a node may have waiting to be sent: more than the windows of its connections, so that, as with a real card, its own
// traffic is never dropped.
constexpr int64_t kMostWaiting = int64_t{64} << 20;

class Switch {
 public:
  Switch(const std::string& prefix, int ports, int64_t longest_wait) : links_(ports, longest_wait) {
    for (int port = 0; port < ports; ++port) ports_.emplace_back(prefix + std::to_string(port));
  }
  LinkModel& links() { return links_; }

  // Until the process is ended.
  [[noreturn]] void run(int control) {
    const int poll = epoll_create1(EPOLL_CLOEXEC);
    const auto watch = [&](int descriptor, uint32_t number) {
      epoll_event event{.events = EPOLLIN, .data = {.u32 = number}};
      epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event);
    };
    const uint32_t control_number = static_cast<uint32_t>(ports_.size());
    for (uint32_t port = 0; port < ports_.size(); ++port) watch(ports_[port].tap.descriptor(), port);
    watch(control, control_number);
    std::array<epoll_event, 64> events;
    while (true) {
      const int64_t next = advance(now());
      const int64_t wait = std::max<int64_t>(0, next - now());
      const timespec time{.tv_sec = wait / 1'000'000'000, .tv_nsec = wait % 1'000'000'000};
      const int count = epoll_pwait2(poll, events.data(), static_cast<int>(events.size()), next == kNever ? nullptr : &time, nullptr);
      for (int i = 0; i < count; ++i) {
        const uint32_t number = events[static_cast<size_t>(i)].data.u32;
        if (number == control_number)
          obey(control);
        else
          accept(ports_[number]);
      }
    }
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  struct Frame {
    int64_t time;  // first when it was read, then when its last bit is sent, then when it arrives
    std::vector<std::byte> bytes;
  };
  struct Port {
    explicit Port(const std::string& name) : tap(name) {}
    TapPort tap;
    std::deque<Frame> acknowledgements, frames;  // that the node waits to send
    int64_t waiting_bytes = 0;
    std::optional<Frame> sending;
    std::deque<Frame> arriving;  // at the node, in order of arrival
  };

  // Moves everything on to `time`; returns when the next thing happens.
  int64_t advance(int64_t time) {
    while (true) {
      // The earliest first, so that frames reach a receiver's link in the order in which they were sent.
      int next = -1;
      for (int p = 0; p < static_cast<int>(ports_.size()); ++p) {
        start_sending(p);
        const auto& sending = ports_[static_cast<size_t>(p)].sending;
        if (sending && (next < 0 || sending->time < ports_[static_cast<size_t>(next)].sending->time)) next = p;
      }
      if (next < 0 || ports_[static_cast<size_t>(next)].sending->time > time) break;
      forward(next, *std::exchange(ports_[static_cast<size_t>(next)].sending, std::nullopt));
    }
    int64_t next = kNever;
    for (Port& port : ports_) {
      for (; !port.arriving.empty() && port.arriving.front().time <= time; port.arriving.pop_front())
        port.tap.write(port.arriving.front().bytes);
      if (!port.arriving.empty()) next = std::min(next, port.arriving.front().time);
      if (port.sending) next = std::min(next, port.sending->time);
    }
    return next;
  }

  // Acknowledgements go first. The queue of a TAP device does not hold its senders back, as that of a real card does; behind
  // all that a node has to send, its acknowledgements would halve what it receives.
  void start_sending(int number) {
    Port& port = ports_[static_cast<size_t>(number)];
    std::deque<Frame>& queue = port.acknowledgements.empty() ? port.frames : port.acknowledgements;
    if (port.sending || queue.empty()) return;
    port.sending = std::move(queue.front());
    queue.pop_front();
    port.waiting_bytes -= static_cast<int64_t>(port.sending->bytes.size());
    port.sending->time = links_.send(number, bytes_on_the_wire(port.sending->bytes), port.sending->time);
  }

  // A frame has left its node for one receiver, or for all where that is not known.
  void forward(int from, Frame frame) {
    const Addresses addresses = addresses_of(frame.bytes);
    port_of_[addresses.source] = from;
    const auto known = port_of_.find(addresses.destination);
    for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
      const bool wanted = addresses.to_group || known == port_of_.end() || known->second == to;
      if (!wanted || to == from) continue;
      if (const auto arrival = links_.receive(from, to, bytes_on_the_wire(frame.bytes), frame.time))
        ports_[static_cast<size_t>(to)].arriving.push_back({*arrival, frame.bytes});
    }
  }

  // Takes what a node wants to send.
  void accept(Port& port) {
    while (const size_t size = port.tap.read(buffer_)) {
      if (port.waiting_bytes > kMostWaiting) continue;
      port.waiting_bytes += static_cast<int64_t>(size);
      const std::span<const std::byte> frame(buffer_.data(), size);
      (is_acknowledgement(frame) ? port.acknowledgements : port.frames).push_back({now(), {frame.begin(), frame.end()}});
    }
  }

  void obey(int control) {
    std::array<char, 4096> text;
    const ssize_t size = read(control, text.data(), text.size());
    std::istringstream lines(std::string(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string command;
      int64_t port = 0, value = 0;
      words >> command;
      if (command == "rate" && words >> port >> value && port >= 0 && port < static_cast<int64_t>(ports_.size()) && value >= 0)
        links_.set_rate(static_cast<int>(port), value);
      else if (command == "delay" && words >> value && value >= 0)
        links_.set_delay(value);
      else
        std::cerr << "virtual_switch: \"" << line << "\" is none of: rate PORT BITS_PER_SECOND, delay NANOSECONDS" << std::endl;
    }
  }

  LinkModel links_;
  std::deque<Port> ports_;
  std::map<uint64_t, int> port_of_;  // learnt from senders
  std::array<std::byte, kLargestFrame> buffer_;
};

// The calling process ends here; its child goes on without a terminal.
void go_to_background(const std::string& pid_file) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start a background process");
  if (child > 0) {
    std::ofstream(pid_file) << child << '\n';
    std::_Exit(0);
  }
  setsid();
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, descriptor);
}

int run(int argc, char** argv) {
  CLI::App app("An Ethernet switch in user space whose links have a rate and a delay");
  std::string prefix, control, pid_file;
  int ports = 0;
  int64_t rate = 0, delay = 0, longest_wait_milliseconds = 400;
  app.add_option("--prefix", prefix, "Devices are called PREFIX0, PREFIX1, ...")->required();
  app.add_option("--ports", ports, "Number of devices")->required()->check(CLI::Range(1, 99));
  app.add_option("--control", control, "FIFO to make, for commands")->required();
  app.add_option("--pid-file", pid_file, "File for the process number of the background process")->required();
  app.add_option("--rate", rate, "Bits per second of every link, each way; 0: unlimited")->check(CLI::NonNegativeNumber);
  app.add_option("--delay", delay, "One-way delay in nanoseconds")->check(CLI::NonNegativeNumber);
  app.add_option("--longest-wait", longest_wait_milliseconds,
                 "Milliseconds that a frame waits for its receiver's link before it is dropped")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  Switch machine(prefix, ports, longest_wait_milliseconds * 1'000'000);
  machine.links().set_delay(delay);
  for (int port = 0; port < ports; ++port) machine.links().set_rate(port, rate);
  // Read and write, so that the FIFO never ends when a writer closes it.
  if (mkfifo(control.c_str(), 0600) != 0) throw std::runtime_error("cannot make the FIFO " + control + "; remove an old one of that name");
  const int commands = open(control.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (commands < 0) throw std::runtime_error("cannot open the FIFO " + control);
  go_to_background(pid_file);
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds; the default of 50 us would add to every delay
  // Before all others where that is allowed: the links shall not slow down because the nodes' processes are busy.
  const sched_param priority{.sched_priority = 1};
  sched_setscheduler(0, SCHED_FIFO, &priority);
  machine.run(commands);
}

}  // namespace
}  // namespace dmuon::virtual_switch

int main(int argc, char** argv) {
  try {
    return dmuon::virtual_switch::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "virtual_switch: " << error.what() << '\n';
    return 2;
  }
}
