#include "train/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace dmuon {
namespace {

volatile sig_atomic_t received = 0;
volatile time_t received_at = 0;

// A launcher and a process group may deliver one request twice within moments; only a later repeat is impatience.
void note(int signal) {
  struct timespec now {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (received == 0) {
    received_at = now.tv_sec;
    received = signal;
  } else if (signal != SIGUSR1 && now.tv_sec - received_at >= 3) {
    _exit(128 + signal);
  }
}

}  // namespace

void install_stop_signals() {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

int stop_signal() { return received; }
void reset_stop_signal() { received = 0; }

}  // namespace dmuon
