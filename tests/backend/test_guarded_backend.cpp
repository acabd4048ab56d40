#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "backend/host_backend.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

// True when `body` ends its process by a memory fault.
bool faults(const std::function<void()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // neither the test framework nor a sanitizer reports it
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

class Guarded {
 public:
  Guarded() {
    BackendOptions options;
    options.mode = HostMode::guarded;
    backend = kernel_suite::open_reference(options);
    tensor = backend->allocate({16}, DType::float32, MemoryCategory::workspace, "tensor");  // 64 bytes: ends at the guard
    backend->zero(backend->compute_stream(), tensor);
  }
  void launch(std::vector<Tensor> touched, const std::function<void()>& body) {
    dynamic_cast<HostBackend&>(*backend).launch(backend->compute_stream(), "test", 0, std::move(touched), body);
  }
  volatile float& element(int64_t index) { return tensor.data<float>()[index]; }
  void read(int64_t index) {
    const float value = element(index);
    static_cast<void>(value);
  }

  std::unique_ptr<Backend> backend;
  Tensor tensor;
};

}  // namespace

TEST_CASE("a guarded tensor is accessible inside the kernels that name it, and nowhere else") {
  Guarded guarded;
  CHECK_FALSE(faults([&] { guarded.launch({guarded.tensor}, [&] { guarded.element(15) = guarded.element(0); }); }));
  CHECK_FALSE(faults([&] { guarded.launch({Tensor(), guarded.tensor, guarded.tensor}, [&] { guarded.element(0) = 1; }); }));
  CHECK(faults([&] { guarded.read(0); }));
  CHECK(faults([&] { guarded.element(0) = 1; }));
  CHECK(faults([&] { guarded.launch({}, [&] { guarded.element(0) = 1; }); }));
  CHECK(faults([&] {
    guarded.launch({guarded.tensor}, [] {});
    guarded.element(0) = 1;
  }));
}

TEST_CASE("one element past the end of a guarded tensor faults, inside a kernel too") {
  Guarded guarded;
  CHECK(faults([&] { guarded.launch({guarded.tensor}, [&] { guarded.read(16); }); }));
  CHECK(faults([&] { guarded.launch({guarded.tensor}, [&] { guarded.element(16) = 1; }); }));
}

TEST_CASE("a guarded tensor closes again after a kernel that throws") {
  Guarded guarded;
  CHECK_THROWS_AS(guarded.launch({guarded.tensor}, [] { throw std::runtime_error("kernel"); }), std::runtime_error);
  CHECK(faults([&] { guarded.element(0) = 1; }));
}

TEST_CASE("a view opens the storage it shares") {
  Guarded guarded;
  CHECK_FALSE(faults([&] { guarded.launch({guarded.tensor.flat(8, 4)}, [&] { guarded.element(9) = 1; }); }));
}
