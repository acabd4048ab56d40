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
#include <sstream>

#include "link_model.h"
#include "tap_port.h"

namespace dmuon::virtual_switch {
namespace {

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// A node that has this much under way (nanoseconds) is not read from, so that its own kernel queues what it sends: cards do not
// drop. Longer than this process may have to wait for a processor, or links would stand idle meanwhile.
constexpr int64_t kLongestBacklog = 50'000'000;

class Switch {
 public:
  Switch(const std::string& prefix, int ports, int64_t longest_wait) : links_(ports, longest_wait), waiting_(static_cast<size_t>(ports)) {
    for (int port = 0; port < ports; ++port) ports_.emplace_back(prefix + std::to_string(port));
  }
  LinkModel& links() { return links_; }

  // Until the process is ended.
  [[noreturn]] void run(int control) {
    const int poll = epoll_create1(EPOLL_CLOEXEC);
    const auto watch = [&](int operation, int descriptor, uint32_t number, bool readable) {
      epoll_event event{.events = readable ? uint32_t{EPOLLIN} : 0U, .data = {.u32 = number}};
      epoll_ctl(poll, operation, descriptor, &event);
    };
    const uint32_t control_number = static_cast<uint32_t>(ports_.size());
    for (uint32_t port = 0; port < ports_.size(); ++port) watch(EPOLL_CTL_ADD, ports_[port].descriptor(), port, true);
    watch(EPOLL_CTL_ADD, control, control_number, true);
    std::vector<bool> paused(ports_.size(), false);
    std::array<epoll_event, 64> events;
    while (true) {
      int64_t next = deliver(now());
      for (uint32_t port = 0; port < ports_.size(); ++port) {
        const int64_t free = now() + links_.backlog(static_cast<int>(port), now()) - kLongestBacklog;
        const bool pause = free > now();
        if (pause) next = std::min(next, free);
        if (pause != paused[port]) watch(EPOLL_CTL_MOD, ports_[port].descriptor(), port, !pause);
        paused[port] = pause;
      }
      const int64_t wait = std::max<int64_t>(0, next - now());
      const timespec time{.tv_sec = wait / 1'000'000'000, .tv_nsec = wait % 1'000'000'000};
      const int count = epoll_pwait2(poll, events.data(), static_cast<int>(events.size()), next == kNever ? nullptr : &time, nullptr);
      for (int i = 0; i < count; ++i) {
        const uint32_t number = events[static_cast<size_t>(i)].data.u32;
        if (number == control_number)
          obey(control);
        else
          accept(static_cast<int>(number));
      }
    }
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  struct Frame {
    int64_t arrival;
    std::vector<std::byte> bytes;
  };

  // Hands over what has arrived; returns when the next frame does.
  int64_t deliver(int64_t time) {
    int64_t next = kNever;
    for (size_t port = 0; port < ports_.size(); ++port) {
      std::deque<Frame>& frames = waiting_[port];
      while (!frames.empty() && frames.front().arrival <= time) {
        ports_[port].write(frames.front().bytes);
        frames.pop_front();
      }
      if (!frames.empty()) next = std::min(next, frames.front().arrival);
    }
    return next;
  }

  // Takes what a node sends, until its link is busy for a while.
  void accept(int from) {
    while (links_.backlog(from, now()) <= kLongestBacklog) {
      const size_t size = ports_[static_cast<size_t>(from)].read(buffer_);
      if (size == 0) return;
      const std::span<const std::byte> frame(buffer_.data(), size);
      const Addresses addresses = addresses_of(frame);
      port_of_[addresses.source] = from;
      const int64_t bytes = bytes_on_the_wire(frame);
      const int64_t sent = links_.send(from, bytes, now());
      const auto known = port_of_.find(addresses.destination);
      for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
        const bool wanted = addresses.to_group || known == port_of_.end() || known->second == to;
        if (!wanted || to == from) continue;
        if (const auto arrival = links_.receive(from, to, bytes, sent))
          waiting_[static_cast<size_t>(to)].push_back({*arrival, {frame.begin(), frame.end()}});
      }
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
  std::vector<TapPort> ports_;
  std::vector<std::deque<Frame>> waiting_;  // by receiver, in order of arrival
  std::map<uint64_t, int> port_of_;         // learnt from senders
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
  int64_t rate = 0, delay = 0, longest_wait_milliseconds = 100;
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
  CLI11_PARSE(app, argc, argv);

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
