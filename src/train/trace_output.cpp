#include "train/trace_output.h"

#include <cstdlib>

#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"

namespace dmuon {

TraceOutput::TraceOutput(Communicator& world, const Path& path)
    : path_(path), rank_(world.rank()), process_(text("rank ", world.rank(), " on ", world.host(world.rank()))) {
  if (path_.empty()) return;
  const double nothing[] = {0.0};
  world.all_reduce(nothing, ReduceOperation::sum);
  origin_ = Trace::Clock::now();
  const std::string first = world.broadcast_text(std::to_string(origin_.time_since_epoch().count()), 0);
  if (world.host(rank_) == world.host(0))
    origin_ = Trace::Clock::time_point(Trace::Clock::duration(std::strtoll(first.c_str(), nullptr, 10)));
  trace_ = std::make_unique<Trace>();
  // Now, not after hours of training.
  agreed(world, [&] {
    if (rank_ == 0) write_file_atomically(path_, trace_document({}));
  });
}

std::string TraceOutput::events() const { return trace_->events(rank_, process_, origin_); }

void TraceOutput::write(Communicator& world) {
  if (!trace_ || written_) return;
  written_ = true;
  // One after the other, so that no rank but the first holds more than one timeline besides its own.
  std::vector<std::string> parts;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::string part = world.broadcast_text(rank == rank_ ? events() : std::string(), rank);
    if (rank_ == 0) parts.push_back(std::move(part));
  }
  agreed(world, [&] {
    if (rank_ != 0) return;
    write_file_atomically(path_, trace_document(parts));
    log_information(text("trace of ", world.size(), world.size() == 1 ? " rank" : " ranks", " written to ", path_.string(),
                         "; open it in ui.perfetto.dev or chrome://tracing"));
  });
}

void TraceOutput::write_alone() noexcept {
  if (!trace_ || written_) return;
  written_ = true;
  try {
    const Path mine = text(path_.string(), ".rank-", rank_, ".json");
    write_file_atomically(mine, trace_document({events()}));
    log_warning(text("the trace of this rank up to the failure is in ", mine.string()));
  } catch (const std::exception& error) {
    log_warning(text("the trace is lost: ", error.what()));
  }
}

}  // namespace dmuon
