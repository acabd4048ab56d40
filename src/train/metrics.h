// metrics.jsonl: one JSON object a line, names spelt out, append-only; a line is one write. On resume, lines after the
// resumed step and a half-written last line are dropped, so steps never repeat.
#pragma once

#include <optional>
#include <string>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/shard/sharded_model.h"
#include "train/appended_file.h"

namespace dmuon {

// Of the votes of one step. A share is missing where the update was not observed.
struct VoteMetrics {
  std::optional<double> tie_share;            // of sampled elements that the tie-breaker decided
  std::optional<double> agreement;            // of sampled bits, over all workers, that equal the vote
  std::optional<double> operator_norm_ratio;  // of one matrix of votes S, m x n: ||S||_op / (sqrt m + sqrt n)
  std::optional<double> largest_change;       // of an element of that matrix
  std::string matrix;                         // its name, another one each time; empty where none was measured
  int64_t bytes_sent = 0;                     // of StepMetrics::sent, for votes alone
  int64_t observation_bytes_sent = 0;         // to learn the above; in no other count
  double observe_seconds = 0;                 // of rank 0 likewise, in no other time but that of waiting
};
VoteMetrics vote_metrics(const VoteReport& report);

// Times in seconds over the step just done; missing values are left out of the line.
struct StepMetrics {
  int64_t step = 0;    // updates done
  int64_t tokens = 0;  // seen since the start of the run
  std::optional<double> train_loss, validation_loss;
  std::optional<double> learning_rate;  // of the matrix rule
  std::optional<double> gradient_norm;  // before clipping
  // Wall time. The update begins when the last backward ends: the end of the reductions and the agreement on the norm are
  // part of it.
  double step_seconds = 0, forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  ExposedSeconds exposed;  // the parts of the three in which rank 0 waited for communication
  TrafficBytes sent;       // by rank 0 in this step
  std::optional<VoteMetrics> votes;
  double tokens_per_second = 0;
  int64_t peak_bytes = 0;                  // rank 0, staging of collectives included
  int64_t newton_schulz_guard_events = 0;  // of all ranks, since the start of the program, before this step's update
  bool skipped = false;                    // the update was left out because a gradient was not finite
};
Json to_json(const StepMetrics& metrics);

class MetricsFile {
 public:
  // Keeps lines with step <= `resumed_step` (0: a new run, the file starts empty). StorageError names the path.
  MetricsFile(const Path& path, int64_t resumed_step);
  void append(const Json& line) { file_->append(line.dump() + "\n"); }
  // Adds the loss to the last line, which must be of that step; without such a line (somebody removed the file) nothing is done.
  void add_validation_loss(int64_t step, double loss);

 private:
  Path path_;
  std::optional<AppendedFile> file_;
};

}  // namespace dmuon
