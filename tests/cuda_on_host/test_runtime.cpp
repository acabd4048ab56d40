// Streams, events, captures, memory and failures of the runtime's stand-in behave as CUDA documents them.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "cuda_on_host/errors.h"
#include "cuda_on_host/planted_bugs.h"
#include "cuda_on_host/stream_queue.h"
#include "cuda_on_host/test_support.h"

using namespace cuda_on_host;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t count = 300;

std::vector<float> all(float value) { return std::vector<float>(count, value); }

}  // namespace

TEST_CASE("work waits until somebody waits for it, or a while") {
  StreamHandle stream;
  std::atomic<bool> ran = false;
  const auto set = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); };
  REQUIRE(cudaLaunchHostFunc(stream, set, &ran) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(ran);
  ran = false;
  REQUIRE(cudaLaunchHostFunc(stream, set, &ran) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(ran);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

TEST_CASE("each stream keeps its order and polled work lets others go on") {
  StreamHandle waits, goes;
  std::atomic<int> polls = 0;
  std::atomic<bool> open = false;
  std::vector<int> order;
  REQUIRE(queue_polled(waits, [&] { return ++polls, open.load(); }) == cudaSuccess);
  REQUIRE(queue_work(waits, "after", [&] { order.push_back(2); }) == cudaSuccess);
  REQUIRE(queue_work(goes, "beside", [&] { order.push_back(1); }) == cudaSuccess);
  CHECK(cudaStreamSynchronize(goes) == cudaSuccess);
  CHECK(order == std::vector<int>{1});
  CHECK(cudaStreamQuery(waits) == cudaErrorNotReady);
  open = true;
  CHECK(cudaStreamSynchronize(waits) == cudaSuccess);
  CHECK(order == std::vector<int>{1, 2});
  CHECK(polls > 0);
}

TEST_CASE("an event is recorded in streams of the device that was current when it was made") {
  StreamHandle stream;
  cudaEvent_t other = nullptr;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&other, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaEventRecord(other, stream) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  CHECK(cudaEventDestroy(other) == cudaSuccess);
}

TEST_CASE("events: unrecorded ones are over, recorded ones when their work is, and they measure time") {
  StreamHandle stream;
  EventHandle begin, end, unrecorded;
  CHECK(cudaEventQuery(unrecorded) == cudaSuccess);
  std::atomic<bool> open = false;
  REQUIRE(cudaEventRecord(begin, stream) == cudaSuccess);
  REQUIRE(queue_polled(stream, [&] { return open.load(); }) == cudaSuccess);
  REQUIRE(cudaEventRecord(end, stream) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaErrorNotReady);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  open = true;
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds > 5);
}

TEST_CASE("the default stream waits for blocking streams and they for it") {
  cudaStream_t blocking = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault) == cudaSuccess);
  for (int attempt = 0; attempt < 20; ++attempt) {
    Buffer x(count, 1.0f), y(count, 0.0f);
    planted::add(blocking, x.data, 1.0f, count);
    planted::accumulate(nullptr, x.data, y.data, count);
    planted::add(blocking, y.data, 5.0f, count);
    planted::accumulate(nullptr, x.data, y.data, count);
    REQUIRE(y.read() == all(9.0f));
  }
  REQUIRE(cudaStreamDestroy(blocking) == cudaSuccess);
}

TEST_CASE("pageable memory is read at once, pinned memory when the stream gets there") {
  StreamHandle stream;
  Buffer x(count);
  std::vector<float> pageable(count, 1.0f);
  REQUIRE(cudaMemcpyAsync(x.data, pageable.data(), count * 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  pageable.assign(count, 2.0f);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(x.read() == all(1.0f));
  float* pinned = nullptr;
  REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&pinned), count * 4, cudaHostAllocDefault) == cudaSuccess);
  for (int64_t i = 0; i < count; ++i) pinned[i] = 1.0f;
  std::atomic<bool> open = false;
  REQUIRE(queue_polled(stream, [&] { return open.load(); }) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(x.data, pinned, count * 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  for (int64_t i = 0; i < count; ++i) pinned[i] = 3.0f;
  open = true;
  CHECK(x.read() == all(3.0f));
  cudaPointerAttributes attributes{};
  CHECK((cudaPointerGetAttributes(&attributes, pinned) == cudaSuccess && attributes.type == cudaMemoryTypeHost));
  CHECK((cudaPointerGetAttributes(&attributes, x.data) == cudaSuccess && attributes.type == cudaMemoryTypeDevice));
  CHECK((cudaPointerGetAttributes(&attributes, pageable.data()) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered));
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("copies are refused out of bounds and in the wrong direction") {
  Buffer x(count, 1.0f);
  std::vector<float> host(count + 1);
  CHECK(cudaMemcpy(host.data(), x.data, (count + 1) * 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data(), x.data, count * 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(x.data, 0, count * 4 + 1) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("launches that a device would refuse") {
  const auto refused = [](dim3 grid, dim3 block, size_t shared) {
    try {
      planted::with_threads(nullptr, grid, block, shared);
    } catch (const dmuon::DeviceError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused(1, 1025, 0), Contains("kernel with_threads") && Contains("cudaErrorInvalidConfiguration"));
  CHECK_THAT(refused(dim3(1, 65536), 32, 0), Contains("cudaErrorInvalidConfiguration"));
  CHECK_THAT(refused(dim3(1, 1, 65536), 32, 0), Contains("cudaErrorInvalidConfiguration"));
  CHECK_THAT(refused(1, dim3(1, 1, 65), 0), Contains("cudaErrorInvalidConfiguration"));
  CHECK_THAT(refused(1, 32, 163 * 1024 + 1), Contains("cudaErrorInvalidValue"));
  CHECK(refused(dim3(70000, 1), dim3(4, 4, 2), 163 * 1024).empty());
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  cudaGetLastError();
}

TEST_CASE("shared variables count beside dynamic shared memory, with leave and without") {
  const auto report = [](void (*start)(cudaStream_t, size_t), size_t bytes) { return report_of([=] { start(nullptr, bytes); }); };
  constexpr size_t variables = 256, common = 48 * 1024, most = 163 * 1024;
  CHECK(report(planted::beside_variables_without_leave, common - variables).empty());
  CHECK_THAT(report(planted::beside_variables_without_leave, common), Contains("beside_variables") &&
                                                                          Contains("49408 bytes of shared memory") &&
                                                                          Contains("without leave for more a block has 49152"));
  CHECK_THROWS_WITH(planted::beside_variables_without_leave(nullptr, common + 1), Contains("cudaErrorInvalidValue"));
  CHECK(report(planted::beside_variables, common - variables).empty());
  CHECK(report(planted::beside_variables, common).empty());  // leave is asked for well below the limit
  CHECK(report(planted::beside_variables, most - variables).empty());
  CHECK_THAT(report(planted::beside_variables, most), Contains("a block has 166912"));
  cudaGetLastError();
}

TEST_CASE("a captured graph replays with its dependencies between streams") {
  StreamHandle first, second;
  Buffer x(count, 0.0f), y(count, 0.0f);
  EventHandle fork, join;
  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  planted::add(first, x.data, 1.0f, count);
  REQUIRE(cudaEventRecord(fork, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, fork, 0) == cudaSuccess);
  planted::accumulate(second, x.data, y.data, count);
  REQUIRE(cudaEventRecord(join, second) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(first, join, 0) == cudaSuccess);
  planted::add(first, x.data, 1.0f, count);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(first, &graph) == cudaSuccess);
  CHECK(x.read() == all(0.0f));  // nothing has run
  size_t nodes = 0;
  CHECK((cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess && nodes == 3));
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(executable, first) == cudaSuccess);
  CHECK(x.read() == all(6.0f));
  CHECK(y.read() == all(1.0f + 3.0f + 5.0f));
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
}

TEST_CASE("captures end when a call is illegal in them") {
  StreamHandle first, second;
  Buffer x(count, 0.0f);
  EventHandle before, inside;
  cudaGraph_t graph = nullptr;
  void* memory = nullptr;
  REQUIRE(cudaEventRecord(before, second) == cudaSuccess);
  const auto end = [&] { return cudaStreamEndCapture(first, &graph); };

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaStreamSynchronize(first) == cudaErrorStreamCaptureUnsupported);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  std::thread([&] { CHECK(cudaMalloc(&memory, 4) == cudaSuccess); }).join();
  std::thread([&] { CHECK(cudaFree(memory) == cudaSuccess); }).join();
  CHECK(end() == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaMalloc(&memory, 4) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(end() == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(first, before, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(cudaEventRecord(inside, first) == cudaSuccess);
  CHECK(cudaEventSynchronize(inside) == cudaErrorCapturedEvent);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(cudaEventRecord(inside, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, inside, 0) == cudaSuccess);
  planted::add(second, x.data, 1.0f, count);
  CHECK(end() == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaStreamSynchronize(second) == cudaSuccess);  // no longer captured
  CHECK(x.read() == all(0.0f));
  cudaGetLastError();
}

TEST_CASE("memory is counted and runs out") {
  setenv("CUDA_ON_HOST_MEMORY", "1000000", 1);
  size_t before = 0, after = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&before, &total) == cudaSuccess);
  CHECK(total == 1000000);
  void *first = nullptr, *second = nullptr;
  CHECK(cudaMalloc(&first, 600000) == cudaSuccess);
  CHECK((cudaMemGetInfo(&after, &total) == cudaSuccess && before - after == 600000));
  CHECK(cudaMalloc(&second, 600000) == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaMalloc(&second, 600000) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  unsetenv("CUDA_ON_HOST_MEMORY");
}

TEST_CASE("devices: how many, which are visible, and none") {
  int devices = 0;
  setenv("CUDA_ON_HOST_DEVICES", "4", 1);
  CHECK((cudaGetDeviceCount(&devices) == cudaSuccess && devices == 4));
  CHECK(cudaSetDevice(4) == cudaErrorInvalidDevice);
  setenv("CUDA_VISIBLE_DEVICES", "2,0,9,1", 1);
  CHECK((cudaGetDeviceCount(&devices) == cudaSuccess && devices == 2));
  cudaDeviceProp properties{};
  CHECK((cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.pciBusID == 3));
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  CHECK(cudaGetDeviceCount(&devices) == cudaErrorNoDevice);
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("CUDA_ON_HOST_DEVICES");
  plan_failures("old_driver");
  CHECK(cudaGetDeviceCount(&devices) == cudaErrorInsufficientDriver);
  int version = 0;
  CHECK((cudaDriverGetVersion(&version) == cudaSuccess && version < CUDART_VERSION));
  plan_failures("");
  cudaGetLastError();
}

TEST_CASE("planned failures: an allocation, a kernel by number and name, the device") {
  StreamHandle stream;
  Buffer x(count, 0.0f);
  void* memory = nullptr;
  plan_failures("cudaMalloc:2");
  CHECK((cudaMalloc(&memory, 8) == cudaSuccess && cudaFree(memory) == cudaSuccess));
  CHECK(cudaMalloc(&memory, 8) == cudaErrorMemoryAllocation);
  plan_failures("kernel:2");
  CHECK_THAT(report_of([&] {
               planted::add(stream, x.data, 1.0f, count);
               planted::add(stream, x.data, 1.0f, count);
             }),
             Contains("kernel add: a planned failure"));
  CHECK(x.read() == all(1.0f));
  plan_failures("kernel=add:1");
  planted::add(stream, x.data, 1.0f, count);
  // Sticky: every later call fails, and nothing hangs.
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK(cudaMalloc(&memory, 8) == cudaErrorLaunchFailure);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK_THROWS_AS(planted::add(stream, x.data, 1.0f, count), dmuon::DeviceError);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  plan_failures("device:1");
  CHECK_THAT(report_of([&] { planted::add(stream, x.data, 1.0f, count); }), Contains("the device was lost"));
  plan_failures("");
}

TEST_CASE("host functions must not wait for the device") {
  StreamHandle stream;
  cudaError_t error = cudaSuccess;
  REQUIRE(queue_work(stream, "host work", [&] { error = cudaDeviceSynchronize(); }) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(error == cudaErrorNotPermitted);
}
