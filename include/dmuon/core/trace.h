// Who did what when: spans of time on named tracks, for a timeline that chrome://tracing and ui.perfetto.dev draw.
//
// A track is a row of the picture: the thread that computes, a communication stream. Every method may be called from any
// thread. Memory is bounded: the newest `capacity` spans are kept, older ones are counted and dropped. Times are those
// of the steady clock; names of tracks, categories and spans are kept once each, so use a small set of them ("unit
// blocks.3", not "unit blocks.3 of step 1234").
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dmuon {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  struct Span {
    std::string track, category, name;
    Clock::time_point start, end;
    int64_t bytes = -1;       // that the span moved on this rank; -1: does not apply
    bool unfinished = false;  // had not ended when it was read; `end` is the time of reading
  };

  // `capacity` is at least 1. A span takes 40 bytes.
  explicit Trace(int64_t capacity = int64_t{1} << 17);

  // Opens a span and returns its number; end() closes it. A number that is not open is ignored, so that work dropped
  // after an error needs no care. A span that never ends is shown as unfinished: after a failure it says what was waited for.
  int64_t begin(std::string_view track, std::string_view category, std::string_view name, int64_t bytes = -1);
  void end(int64_t span);
  // A span whose times are known.
  void record(std::string_view track, std::string_view category, std::string_view name, Clock::time_point start, Clock::time_point end,
              int64_t bytes = -1);

  // The spans kept, by start; unfinished ones included.
  std::vector<Span> spans() const;
  // Seconds of the finished spans of a category that are kept.
  double seconds(std::string_view category) const;
  int64_t dropped() const;

  // The events of this trace as JSON objects, separated by commas: process number `rank` named `process`, times in
  // microseconds since `origin`. One part of trace_document().
  std::string events(int rank, std::string_view process, Clock::time_point origin) const;

 private:
  struct Entry {
    int32_t track = 0, category = 0, name = 0;
    Clock::time_point start, end;
    int64_t bytes = -1;
  };
  int32_t intern(std::string_view name);
  void keep(const Entry& entry);
  Span span_of(const Entry& entry) const;

  mutable std::mutex mutex_;
  size_t capacity_;
  std::vector<Entry> entries_;  // a ring once it is full
  size_t next_ = 0;
  int64_t dropped_ = 0;
  int64_t last_number_ = 0;
  std::map<int64_t, Entry> open_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> name_numbers_;
};

// One span as long as the object lives; without a trace it costs one comparison.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, std::string_view track, std::string_view category, std::string_view name, int64_t bytes = -1)
      : trace_(trace), span_(trace == nullptr ? 0 : trace->begin(track, category, name, bytes)) {}
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->end(span_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  int64_t span_;
};

// A file of the Trace Event Format (JSON object form) from parts made by Trace::events().
std::string trace_document(const std::vector<std::string>& parts);

}  // namespace dmuon
