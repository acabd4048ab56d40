// The typed configuration of a run. The member initialisers below are the defaults; paths, ranges, allowed values and
// descriptions stand in the key table (dmuon/config/key_table.h), from which every reader, printer and document is made.
// Enumerations stay strings here (checked against the table); the layers that own a concept map them to their own types.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"

namespace dmuon {

struct ModelConfiguration {
  std::string family = "gpt2";
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t width = 384;
  int64_t context_length = 256;
  int64_t vocabulary_size = 0;  // 0: the tokenizer's
  int64_t vocabulary_multiple = 1;
  std::string normalization = "layer_norm";
  double normalization_epsilon = 1e-5;
  std::string activation = "gelu";
  bool tied_head = true;
  bool bias = true;
  double dropout = 0.0;
  std::string initializer = "fixed";
  double initializer_deviation = 0.02;
  int64_t feed_forward_width = 0;  // 0: 4 * width
  // qwen only
  int64_t key_value_heads = 0;  // 0: heads
  int64_t head_width = 0;       // 0: width / heads
  double rotary_base = 10000.0;
  int64_t maximum_positions = 0;
  bool attention_bias = true;
  bool query_key_normalization = false;
  std::string from;  // a Hugging Face directory, or empty
  bool operator==(const ModelConfiguration&) const = default;
};

struct DataConfiguration {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  double validation_fraction = 0.1;
  std::string format = "auto";
  std::string tokenizer = "byte";
  bool operator==(const DataConfiguration&) const = default;
};

struct TrainingConfiguration {
  int64_t steps = 1000;
  int64_t batch_tokens = 16384;
  int64_t micro_batch_size = 0;  // 0: the whole block of a rank
  bool recompute = false;
  double gradient_clip = 1.0;
  std::string non_finite = "stop";
  int64_t maximum_skips = 10;
  int64_t replica_check_interval = 100;
  bool operator==(const TrainingConfiguration&) const = default;
};

struct ScheduleConfiguration {
  std::string type = "constant";
  int64_t warmup_steps = 0;      // resolved: from warmup_fraction where that is given
  double warmup_fraction = 0.0;  // resolved: 0
  int64_t total_steps = 0;       // resolved: training.steps where the file says 0
  int64_t decay_steps = 0;       // resolved: from decay_fraction where that is given
  double decay_fraction = 0.0;   // resolved: 0
  std::string decay_shape = "linear";
  double final_fraction = 0.0;
  bool operator==(const ScheduleConfiguration&) const = default;
};

// One update rule with its hyper-parameters. Only the members that `rule` uses mean anything (rule_key_applies); the
// others keep these initialisers.
struct RuleConfiguration {
  std::string match;  // only in optimizer.overrides: pattern over parameter names, * stands for any text
  std::string rule = "adamw";
  std::string preset;  // muon and sign_muon only
  double learning_rate = 0.001;
  double weight_decay = 0.0;
  ScheduleConfiguration schedule;
  // adamw, sign_adam; the betas also lion
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  // sgd, muon, sign_muon, signum
  double momentum = 0.9;
  bool nesterov = false;
  double dampening = 0.0;  // sgd only
  // muon and sign_muon; the form of the momentum also signum
  std::string momentum_form = "lerp";
  int64_t momentum_warmup_steps = 0;
  double momentum_start = 0.85;
  bool per_head = false;
  std::string coefficients = "keller5";
  int64_t iterations = 0;  // 0: as many as the set has
  std::string iteration_form = "auto";
  std::vector<int64_t> restarts;  // empty: the set's own table
  double normalization_epsilon = 1e-15;
  std::string epsilon_mode = "clamp";
  double normalization_safety = 1.0;  // of epsilon_mode scaled
  std::string normalization = "frobenius";
  std::string newton_schulz_dtype = "auto";
  bool tune_numerics = false;
  std::string scale = "original";  // muon only
  double scale_factor = 1.0;       // muon only
  // the rules with a vote: sign_muon, signum, sign_adam, lion
  std::string rate_shape = "none";
  std::string decay = "decoupled";
  bool post_polar = false;  // sign_muon only
  bool operator==(const RuleConfiguration&) const = default;
};

struct OptimizerConfiguration {
  RuleConfiguration matrix;                  // hidden matrices
  RuleConfiguration auxiliary;               // embeddings, head, tied pair, vectors
  std::vector<RuleConfiguration> overrides;  // first match wins, before the two above
  bool operator==(const OptimizerConfiguration&) const = default;
};

struct DistributionConfiguration {
  std::string method = "owner";
  int64_t stage = 2;
  std::vector<std::string> unit_stages;  // "pattern=stage" over unit names, the first that matches holds
  int64_t nodes = 0;                     // 0: the machine's
  int64_t replicas = 0;                  // 0: as many as nodes; with a voting rule as many as ranks
  std::string planner = "greedy";
  double planner_time_limit_seconds = 10.0;
  int64_t memory_limit_bytes = 0;  // of a rank; 0: none
  std::string cost_model = "flops";
  int64_t window_units = 4;
  int64_t look_ahead = 2;
  bool overlap = true;
  std::string reduce = "auto";
  std::string publish_form = "auto";
  std::string vote_transport = "auto";
  std::string compute_dtype = "float32";
  std::string gradient_dtype = "float32";
  int64_t cut_elements = 16384;
  bool operator==(const DistributionConfiguration&) const = default;
};

struct CommunicationConfiguration {
  double start_timeout_seconds = 300.0;
  double step_timeout_seconds = 120.0;
  double checkpoint_timeout_seconds = 1800.0;
  bool operator==(const CommunicationConfiguration&) const = default;
};

struct TuningConfiguration {
  bool enabled = false;
  std::string cache_directory;  // empty: the user's
  bool operator==(const TuningConfiguration&) const = default;
};

struct EvaluationConfiguration {
  int64_t interval = 0;
  int64_t batch_size = 16;
  int64_t maximum_tokens = 0;
  bool operator==(const EvaluationConfiguration&) const = default;
};

struct SampleConfiguration {
  int64_t interval = 0;
  std::string prompt = "\n";
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  int64_t seed = 0;
  int64_t count = 1;
  bool operator==(const SampleConfiguration&) const = default;
};

struct CheckpointConfiguration {
  int64_t interval = 0;
  int64_t keep = 3;
  bool at_end = true;
  std::string on_failure = "stop";
  int64_t maximum_failures = 3;
  bool operator==(const CheckpointConfiguration&) const = default;
};

struct LoggingConfiguration {
  int64_t interval = 10;
  std::string level = "information";
  bool operator==(const LoggingConfiguration&) const = default;
};

struct Configuration {
  std::string name = "run";
  std::string output;  // resolved: "runs/<name>" where the file says nothing
  int64_t seed = 0;
  std::string device = "auto";
  int64_t threads = 0;
  ModelConfiguration model;
  DataConfiguration data;
  TrainingConfiguration training;
  OptimizerConfiguration optimizer;
  DistributionConfiguration distribution;
  CommunicationConfiguration communication;
  TuningConfiguration tuning;
  EvaluationConfiguration evaluation;
  SampleConfiguration sample;
  CheckpointConfiguration checkpoint;
  LoggingConfiguration logging;
  bool operator==(const Configuration&) const = default;
};

// Reads, overrides, checks and resolves. `path` empty: all defaults. Each override is "a.b.c=value"; later ones win. The
// value is JSON if it parses as JSON, else the text itself; a text key takes the text as it stands, a list key takes one
// plain text as a list of one; list elements are reached by index (optimizer.overrides.0.learning_rate=0.1).
// Throws ConfigError listing every error of file and overrides at once, each with JSON path, value, what is allowed and
// the nearest valid key; StorageError if the file cannot be read.
// Where model.from names a directory, `import_model` says what it determines: those keys of "model" get its values, and a file
// that says otherwise is refused by key. It is told the run's output directory, too: a run that goes on need not have the model's directory
// any more. Without it the keys have to be written out, as they are in a resolved configuration.
struct ImportedModel {
  Json settings;                 // keys of "model" with their values
  bool shorter_context = false;  // model.context_length may be less than the directory's
  std::string tokenizer;         // for data.tokenizer where the file does not say; empty: the directory has none
};
using ModelImport = std::function<ImportedModel(const std::string& from, const std::string& output)>;
Configuration load_configuration(const Path& path, const std::vector<std::string>& overrides = {}, const ModelImport& import_model = {});
// The same from text; `origin` names it in errors.
Configuration parse_configuration(std::string_view json, std::string_view origin, const std::vector<std::string>& overrides = {},
                                  const ModelImport& import_model = {});

// The values that follow from others: `output`, schedules' steps. Idempotent; the two loaders have called it.
void resolve(Configuration& configuration);
// The same for one schedule of a run of `steps` steps.
void resolve(ScheduleConfiguration& schedule, int64_t steps);

// Every key that has a meaning in this configuration, in the order of the key table, defaults included. Reading it back
// gives an equal configuration.
Json to_json(const Configuration& configuration);
// Hash of to_json: equal on all ranks or the run does not start.
uint64_t configuration_hash(const Configuration& configuration);

// The defaults of `rule` ("adamw", "sgd", "muon" ...); for rules with presets those of `preset` (the rule's first when empty).
RuleConfiguration rule_defaults(std::string_view rule, std::string_view preset = {});

// Whether the workers of this rule agree by a vote on signs.
bool rule_votes(std::string_view rule);
bool any_rule_votes(const OptimizerConfiguration& optimizer);
// What a run with voting rules should be told at its start: legal settings that do less, or other things, than they seem to.
std::vector<std::string> vote_notes(const Configuration& configuration);

}  // namespace dmuon
