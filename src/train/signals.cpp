#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace dmuon {
namespace {

volatile sig_atomic_t received = 0;

void note(int signal) {
  if (received != 0 && signal != SIGUSR1) _exit(128 + signal);
  if (received == 0) received = signal;
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
