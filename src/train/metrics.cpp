#include "train/metrics.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

VoteMetrics vote_metrics(const VoteReport& report) {
  VoteMetrics metrics;
  metrics.observation_bytes_sent = report.bytes;
  metrics.observe_seconds = report.observe_seconds;
  if (report.sampled > 0) {
    const auto sampled = static_cast<double>(report.sampled);
    metrics.tie_share = static_cast<double>(report.tied) / sampled;
    metrics.agreement = static_cast<double>(report.agreeing) / (sampled * report.workers);
  }
  metrics.matrix = report.matrix;
  if (!report.matrix.empty()) {
    metrics.operator_norm_ratio = report.operator_norm_ratio;
    metrics.largest_change = report.largest_change;
  }
  return metrics;
}

Json to_json(const StepMetrics& metrics) {
  Json line = Json::object();
  const auto set = [&](const char* name, const std::optional<double>& value) {
    if (value) line.set(name, *value);
  };
  line.set("step", metrics.step);
  line.set("tokens", metrics.tokens);
  set("train_loss", metrics.train_loss);
  set("validation_loss", metrics.validation_loss);
  set("learning_rate", metrics.learning_rate);
  set("gradient_norm", metrics.gradient_norm);
  line.set("step_seconds", metrics.step_seconds);
  line.set("forward_seconds", metrics.forward_seconds);
  line.set("backward_seconds", metrics.backward_seconds);
  line.set("update_seconds", metrics.update_seconds);
  line.set("exposed_communication_seconds", metrics.exposed.total());
  line.set("exposed_forward_seconds", metrics.exposed.forward);
  line.set("exposed_backward_seconds", metrics.exposed.backward);
  line.set("exposed_update_seconds", metrics.exposed.update);
  line.set("bytes_sent", metrics.sent.inside + metrics.sent.between);
  line.set("bytes_sent_between_nodes", metrics.sent.between);
  if (metrics.votes) {
    line.set("vote_bytes_sent", metrics.votes->bytes_sent);
    line.set("vote_observation_bytes_sent", metrics.votes->observation_bytes_sent);
    line.set("vote_observe_seconds", metrics.votes->observe_seconds);
    set("vote_tie_share", metrics.votes->tie_share);
    set("vote_agreement", metrics.votes->agreement);
    set("vote_operator_norm_ratio", metrics.votes->operator_norm_ratio);
    set("vote_largest_change", metrics.votes->largest_change);
    if (!metrics.votes->matrix.empty()) line.set("vote_matrix", metrics.votes->matrix);
  }
  line.set("tokens_per_second", metrics.tokens_per_second);
  line.set("peak_bytes", metrics.peak_bytes);
  line.set("newton_schulz_guard_events", metrics.newton_schulz_guard_events);
  if (metrics.skipped) line.set("skipped", true);
  return line;
}

namespace {

// Whole lines whose step is at most `last_step`.
std::string kept_lines(const Path& path, int64_t last_step) {
  std::error_code ignored;
  if (last_step <= 0 || !std::filesystem::exists(path, ignored)) return {};
  const std::string content = read_file(path, int64_t{1} << 34);
  std::string kept;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;  // a line cut by a crash
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    try {
      const Json value = parse_json(line, path.string());
      if (value.at("step").as_integer() <= last_step) kept += line + "\n";
    } catch (const ConfigError&) {
      // A damaged line is dropped: it can only be one that a crash cut in two.
    }
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const Path& path, int64_t resumed_step) : path_(path) {
  write_file_atomically(path, kept_lines(path, resumed_step));
  file_.emplace(path);
}

void MetricsFile::add_validation_loss(int64_t step, double loss) {
  std::string content = read_file(path_, int64_t{1} << 34);
  if (content.empty()) return;
  const size_t before = content.rfind('\n', content.size() - 2);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const Json last = parse_json(content.substr(begin), path_.string());
  if (last.at("step").as_integer() != step) return;
  Json line = Json::object();
  for (const auto& [name, value] : last.as_object()) {
    if (name == "validation_loss") continue;
    line.set(name, value);
    if (name == "train_loss") line.set("validation_loss", loss);  // where other lines have it
  }
  content.resize(begin);
  write_file_atomically(path_, content + line.dump() + "\n");
  file_.emplace(path_);  // the name stands for another file now
}

}  // namespace dmuon
