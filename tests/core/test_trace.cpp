#include "dmuon/core/trace.h"

#include <thread>

#include "dmuon/core/json.h"
#include "support/catch.h"

using namespace dmuon;

TEST_CASE("spans keep track, category, name, times and bytes, ordered by start") {
  Trace trace;
  const int64_t outer = trace.begin("compute", "forward", "blocks.0");
  const int64_t inner = trace.begin("gradients", "collective", "reduce_scatter blocks.0", 4096);
  trace.end(inner);
  trace.end(outer);
  trace.end(outer);  // not open any more
  trace.end(12345);
  const std::vector<Trace::Span> spans = trace.spans();
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].name == "blocks.0");
  CHECK(spans[0].track == "compute");
  CHECK(spans[0].category == "forward");
  CHECK(spans[0].bytes == -1);
  CHECK(spans[1].name == "reduce_scatter blocks.0");
  CHECK(spans[1].bytes == 4096);
  CHECK(spans[0].start <= spans[1].start);
  CHECK(spans[1].end <= spans[0].end);
  CHECK_FALSE(spans[0].unfinished);
  const auto now = Trace::Clock::now();
  trace.record("compute", "wait", "blocks.1", now, now + std::chrono::milliseconds(250));
  CHECK(trace.seconds("wait") == Approx(0.25));
  CHECK(trace.seconds("nothing") == 0.0);
}

TEST_CASE("a span that never ended is shown as unfinished") {
  Trace trace;
  trace.begin("gradients", "collective", "all_reduce");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::vector<Trace::Span> spans = trace.spans();
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].unfinished);
  CHECK(spans[0].end - spans[0].start >= std::chrono::milliseconds(2));
  CHECK(trace.seconds("collective") == 0.0);
}

TEST_CASE("memory is bounded: the newest spans stay, the others are counted") {
  Trace trace(10);
  for (int i = 0; i < 25; ++i) trace.end(trace.begin("compute", "forward", "unit " + std::to_string(i)));
  const std::vector<Trace::Span> spans = trace.spans();
  REQUIRE(spans.size() == 10);
  for (int i = 0; i < 10; ++i) CHECK(spans[static_cast<size_t>(i)].name == "unit " + std::to_string(15 + i));
  CHECK(trace.dropped() == 15);
}

TEST_CASE("a span object spans its scope, and without a trace does nothing") {
  Trace trace;
  { const TraceSpan span(&trace, "compute", "update", "window 0"); }
  { const TraceSpan span(nullptr, "compute", "update", "window 0"); }
  CHECK(trace.spans().size() == 1);
}

TEST_CASE("threads record at once without losing spans") {
  Trace trace;
  constexpr int per_thread = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < per_thread; ++i) {
        const TraceSpan span(&trace, "thread " + std::to_string(t), "compute", "step");
        if (i % 100 == 0) trace.spans();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(trace.spans().size() == 4 * per_thread);
  CHECK(trace.dropped() == 0);
}

TEST_CASE("the document is JSON of the trace event format, with a process for each rank and a thread for each track") {
  Trace first, second;
  const auto origin = Trace::Clock::now();
  first.record("compute", "forward", "a \"quoted\"\nname", origin + std::chrono::microseconds(1500),
               origin + std::chrono::microseconds(4000));
  first.record("gradients", "collective", "all_reduce", origin, origin + std::chrono::microseconds(1), 8);
  second.begin("compute", "wait", "blocks.0");
  const Json document =
      parse_json(trace_document({first.events(0, "rank 0 on here", origin), second.events(1, "rank 1 on there", origin)}), "trace");
  int processes = 0, tracks = 0;
  std::vector<Json> spans;
  for (const Json& event : document.at("traceEvents").as_array()) {
    const std::string name = event.at("name").as_string();
    if (event.at("ph").as_string() == "X") spans.push_back(event);
    if (name == "process_name") CHECK(event.at("args").at("name").as_string() == (processes++ == 0 ? "rank 0 on here" : "rank 1 on there"));
    tracks += name == "thread_name";
  }
  CHECK(processes == 2);
  CHECK(tracks == 3);
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].at("name").as_string() == "all_reduce");
  CHECK(spans[0].at("args").at("bytes").as_integer() == 8);
  CHECK(spans[1].at("name").as_string() == "a \"quoted\"\nname");
  CHECK(spans[1].at("ts").as_number() == Approx(1500));
  CHECK(spans[1].at("dur").as_number() == Approx(2500));
  CHECK(spans[1].at("tid").as_integer() != spans[0].at("tid").as_integer());
  CHECK(spans[2].at("pid").as_integer() == 1);
  CHECK(spans[2].at("args").at("unfinished").as_bool());
}
