#include "plan/isolated_solver.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr double grace = 1.5;                    // of the limit, and
constexpr double grace_seconds = 2;              // before the child is killed
constexpr double shortest = 0.1, longest = 1e6;  // seconds of a limit
constexpr int64_t most_closed = 65536;           // descriptors closed one by one

// What the child sends: this, then `values` doubles, then `text` characters of a message.
struct Answer {
  int32_t status = 0;
  int32_t thrown = 0;
  double objective = 0.0, bound = 0.0;
  int64_t values = 0, text = 0;
};

void write_all(int descriptor, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the parent has gone
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

MilpLimits clamped(MilpLimits limits) {
  limits.seconds = limits.seconds > shortest ? std::min(limits.seconds, longest) : shortest;  // NaN, too
  return limits;
}

// Leaves /dev/null as the standard streams and `out`, which moves to the next descriptor, and closes everything else: files,
// sockets and devices of the parent would otherwise stay open for as long as the solver runs. Returns the moved one.
int keep_only(int out) {
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (nowhere >= 0 && standard != out) ::dup2(nowhere, standard);
  constexpr int kept = STDERR_FILENO + 1;
  if (::dup2(out, kept) < 0) return out;
  if (::close_range(kept + 1, std::numeric_limits<unsigned>::max(), 0) != 0)  // a kernel without it
    for (int each = kept + 1; each < std::min<int64_t>(::sysconf(_SC_OPEN_MAX), most_closed); ++each) ::close(each);
  return kept;
}

// Never returns, runs no destructors of the parent's objects and flushes none of its streams.
[[noreturn]] void run_child(MilpSolver& solver, const MilpProblem& problem, const MilpLimits& limits, int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);     // a killed job leaves no solver behind
  if (::getppid() != parent) ::_exit(1);  // it died before that
  for (int signal : {SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGALRM, SIGPIPE}) std::signal(signal, SIG_DFL);
  ::alarm(static_cast<unsigned>(grace * limits.seconds + 2 * grace_seconds) + 1);  // also when the parent is stopped
  out = keep_only(out);
  Answer answer;
  MilpSolution solution;
  std::string message;
  try {
    solution = solver.solve(problem, limits);
    message = solution.message;
  } catch (const std::exception& error) {
    answer.thrown = 1;
    message = error.what();
  }
  answer.status = static_cast<int32_t>(solution.status);
  answer.objective = solution.objective;
  answer.bound = solution.bound;
  answer.values = static_cast<int64_t>(solution.values.size());
  answer.text = static_cast<int64_t>(message.size());
  write_all(out, &answer, sizeof answer);
  write_all(out, solution.values.data(), solution.values.size() * sizeof(double));
  write_all(out, message.data(), message.size());
  ::_exit(0);
}

// Everything until the other end closes, or what came before the deadline.
std::string read_all(int descriptor, double seconds, bool& in_time) {
  const auto start = std::chrono::steady_clock::now();
  std::string bytes;
  char buffer[65536];
  in_time = false;
  while (true) {
    const double left = seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (left <= 0.0) return bytes;
    pollfd entry{descriptor, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min(left * 1e3 + 1.0, 1e6)));
    if (ready < 0 && errno != EINTR) return bytes;
    if (ready <= 0) continue;
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      in_time = true;
      return bytes;
    }
    bytes.append(buffer, static_cast<size_t>(count));
  }
}

class IsolatedSolver final : public MilpSolver {
 public:
  explicit IsolatedSolver(std::unique_ptr<MilpSolver> solver) : solver_(std::move(solver)) {}
  std::string name() const override { return solver_->name(); }

  MilpSolution solve(const MilpProblem& problem, const MilpLimits& asked) override {
    const MilpLimits limits = clamped(asked);
    const pid_t parent = ::getpid();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw ConfigError(text(name(), " cannot be started: pipe: ", std::strerror(errno)));
    const pid_t child = ::fork();
    if (child < 0) {
      const int cause = errno;
      ::close(ends[0]);
      ::close(ends[1]);
      throw ConfigError(text(name(), " cannot be started: fork: ", std::strerror(cause)));
    }
    if (child == 0) run_child(*solver_, problem, limits, ends[1], parent);
    ::close(ends[1]);
    bool in_time = false;
    const std::string bytes = read_all(ends[0], grace * limits.seconds + grace_seconds, in_time);
    ::close(ends[0]);
    if (!in_time) ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return solution_of(
        bytes, problem,
        in_time ? (WIFSIGNALED(status) ? text("died by signal ", WTERMSIG(status)) : "gave no answer") : "did not keep its time limit");
  }

 private:
  MilpSolution solution_of(const std::string& bytes, const MilpProblem& problem, const std::string& failure) const {
    Answer answer;
    MilpSolution solution;
    if (bytes.size() < sizeof answer) {
      solution.message = text(name(), " ", failure);
      return solution;
    }
    std::memcpy(&answer, bytes.data(), sizeof answer);
    const auto values = static_cast<size_t>(answer.values);
    if ((values != 0 && values != problem.variables.size()) ||
        bytes.size() != sizeof answer + values * sizeof(double) + static_cast<size_t>(answer.text)) {
      solution.message = text(name(), " ", failure);
      return solution;
    }
    const std::string message = bytes.substr(bytes.size() - static_cast<size_t>(answer.text));
    if (answer.thrown != 0) throw ConfigError(message);
    solution.status = static_cast<MilpStatus>(answer.status);
    solution.objective = answer.objective;
    solution.bound = answer.bound;
    solution.message = message;
    solution.values.resize(values);
    if (values > 0) std::memcpy(solution.values.data(), bytes.data() + sizeof answer, values * sizeof(double));
    return solution;
  }

  std::unique_ptr<MilpSolver> solver_;
};

}  // namespace

std::unique_ptr<MilpSolver> make_isolated_solver(std::unique_ptr<MilpSolver> solver) {
  return std::make_unique<IsolatedSolver>(std::move(solver));
}

}  // namespace dmuon
