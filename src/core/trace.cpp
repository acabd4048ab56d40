#include "dmuon/core/trace.h"

#include <algorithm>
#include <cstdio>

#include "dmuon/core/json.h"
#include "dmuon/core/text.h"

namespace dmuon {

Trace::Trace(int64_t capacity) : capacity_(static_cast<size_t>(std::max<int64_t>(1, capacity))) {}

int32_t Trace::intern(std::string_view name) {
  const auto [position, added] = name_numbers_.try_emplace(std::string(name), static_cast<int32_t>(names_.size()));
  if (added) names_.emplace_back(name);
  return position->second;
}

void Trace::keep(const Entry& entry) {
  if (entries_.size() < capacity_) {
    entries_.push_back(entry);
    return;
  }
  entries_[next_] = entry;
  next_ = (next_ + 1) % capacity_;
  ++dropped_;
}

int64_t Trace::begin(std::string_view track, std::string_view category, std::string_view name, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Entry entry{intern(track), intern(category), intern(name), {}, {}, bytes};
  entry.start = Clock::now();
  open_.emplace(++last_number_, entry);
  return last_number_;
}

void Trace::end(int64_t span) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(span);
  if (found == open_.end()) return;
  found->second.end = now;
  keep(found->second);
  open_.erase(found);
}

void Trace::record(std::string_view track, std::string_view category, std::string_view name, Clock::time_point start, Clock::time_point end,
                   int64_t bytes) {
  const std::lock_guard lock(mutex_);
  keep({intern(track), intern(category), intern(name), start, std::max(start, end), bytes});
}

Trace::Span Trace::span_of(const Entry& entry) const {
  const auto name = [&](int32_t number) { return names_[static_cast<size_t>(number)]; };
  return {name(entry.track), name(entry.category), name(entry.name), entry.start, entry.end, entry.bytes, false};
}

std::vector<Trace::Span> Trace::spans() const {
  std::vector<Span> all;
  {
    const std::lock_guard lock(mutex_);
    all.reserve(entries_.size() + open_.size());
    for (const Entry& entry : entries_) all.push_back(span_of(entry));
    const auto now = Clock::now();
    for (const auto& [number, entry] : open_) {
      all.push_back(span_of(entry));
      all.back().end = now;
      all.back().unfinished = true;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  return all;
}

double Trace::seconds(std::string_view category) const {
  const std::lock_guard lock(mutex_);
  const auto number = name_numbers_.find(std::string(category));
  if (number == name_numbers_.end()) return 0.0;
  Clock::duration sum{};
  for (const Entry& entry : entries_)
    if (entry.category == number->second) sum += entry.end - entry.start;
  return std::chrono::duration<double>(sum).count();
}

int64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

namespace {

std::string quoted(std::string_view value) { return Json(value).dump(); }

// Microseconds with three decimals, as text: a stream would round a long run's times.
std::string microseconds(Trace::Clock::duration duration) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.3f", std::chrono::duration<double, std::micro>(duration).count());
  return buffer;
}

}  // namespace

std::string Trace::events(int rank, std::string_view process, Clock::time_point origin) const {
  const std::vector<Span> all = spans();
  // Tracks in the order of their first span, so that the thread that computes comes first.
  std::vector<std::string> tracks;
  std::unordered_map<std::string, size_t> number_of;
  for (const Span& span : all)
    if (number_of.try_emplace(span.track, tracks.size()).second) tracks.push_back(span.track);

  const auto metadata = [&](const char* name, size_t thread, const std::string& arguments) {
    return text("{\"ph\":\"M\",\"name\":\"", name, "\",\"pid\":", rank, ",\"tid\":", thread, ",\"args\":{", arguments, "}}");
  };
  std::string out = metadata("process_name", 0, "\"name\":" + quoted(process));
  out += ",\n" + metadata("process_sort_index", 0, text("\"sort_index\":", rank));
  out += ",\n" + metadata("dmuon_dropped_spans", 0, text("\"count\":", dropped()));
  for (size_t track = 0; track < tracks.size(); ++track) {
    out += ",\n" + metadata("thread_name", track, "\"name\":" + quoted(tracks[track]));
    out += ",\n" + metadata("thread_sort_index", track, text("\"sort_index\":", track));
  }
  for (const Span& span : all) {
    out += ",\n{\"ph\":\"X\",\"pid\":" + std::to_string(rank) + ",\"tid\":" + std::to_string(number_of.at(span.track)) +
           ",\"cat\":" + quoted(span.category) + ",\"name\":" + quoted(span.name) + ",\"ts\":" + microseconds(span.start - origin) +
           ",\"dur\":" + microseconds(span.end - span.start);
    if (span.bytes >= 0 || span.unfinished) {
      out += ",\"args\":{";
      if (span.bytes >= 0) out += "\"bytes\":" + std::to_string(span.bytes);
      if (span.unfinished) out += text(span.bytes >= 0 ? "," : "", "\"unfinished\":true");
      out += "}";
    }
    out += "}";
  }
  return out;
}

std::string trace_document(const std::vector<std::string>& parts) {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + join(parts, ",\n") + "\n]}\n";
}

}  // namespace dmuon
