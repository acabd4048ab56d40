// Requests to stop. The handlers only set a flag; ranks agree on it between steps. A SIGTERM or SIGINT that comes three
// seconds or more after the first ends the process at once with 128 + its number.
#pragma once

namespace dmuon {

// Installs handlers for SIGUSR1, SIGTERM and SIGINT.
void install_stop_signals();
// Number of the first signal received, 0 if none. The flag is one of the two process-wide objects (design section 3).
int stop_signal();
void reset_stop_signal();  // tests

}  // namespace dmuon
