// The rows of everything but the update rules.
#include "config/bound_key.h"

namespace dmuon {
namespace {

using Rows = std::vector<BoundKey<Configuration>>;

constexpr double largest_seed = 9e18;
constexpr double largest_size = 1 << 24;  // layers, widths, vocabularies: products of two stay far below 2^63

// One row; `field` is the member of Configuration.
#define DMUON_KEY(path, field, constraint, description) \
  row<Configuration>(                                   \
      path, [](auto& c) -> auto& { return c.field; }, constraint, description)

Rows run_rows() {
  return {
      DMUON_KEY("name", name, any(), "Name of the run, part of paths: letters, digits, dot, dash and underscore."),
      DMUON_KEY("output", output, any(), "Run directory: resolved config, metrics, log, checkpoints, samples; empty: runs/<name>."),
      DMUON_KEY("seed", seed, between(0, largest_seed), "Seed of initialisation, data order and dropout."),
      DMUON_KEY("device", device, one_of({"auto", "cpu", "cuda", "reference"}),
                "Backend that computes; auto takes a usable GPU, else the CPU; reference is the slow, naive one of the tests."),
      DMUON_KEY("threads", threads, between(0, 4096), "Threads per rank; 0: this rank's share of the affinity mask."),
  };
}

Rows model_rows() {
  return {
      DMUON_KEY("model.family", model.family, one_of({"gpt2", "qwen"}),
                "Model family: gpt2, or qwen (Qwen2, Qwen2.5, Qwen3); keys that one of them lacks are refused by name."),
      DMUON_KEY("model.layers", model.layers, between(1, 4096), "Transformer blocks."),
      DMUON_KEY("model.heads", model.heads, between(1, 4096), "Attention heads; divides model.width unless model.head_width is given."),
      DMUON_KEY("model.width", model.width, between(1, largest_size), "Width of the residual stream (embedding size)."),
      DMUON_KEY("model.context_length", model.context_length, between(1, largest_size), "Longest sequence, in tokens."),
      DMUON_KEY("model.vocabulary_size", model.vocabulary_size, between(0, largest_size),
                "Distinct tokens; 0: the tokenizer's (token shards have none and need the number)."),
      DMUON_KEY("model.vocabulary_multiple", model.vocabulary_multiple, between(1, 65536),
                "Embedding and head are padded to a multiple of this many rows; padding is never predicted."),
      DMUON_KEY("model.normalization", model.normalization, of_family("gpt2", one_of({"layer_norm", "rms_norm"})),
                "Normalisation before each half block."),
      DMUON_KEY("model.normalization_epsilon", model.normalization_epsilon, between(0, 1), "Added to the variance (or mean square)."),
      DMUON_KEY("model.activation", model.activation, of_family("gpt2", one_of({"gelu", "gelu_tanh", "relu_squared"})),
                "Activation of the feed-forward half; gelu is the exact one."),
      DMUON_KEY("model.tied_head", model.tied_head, any(), "Whether the head shares the token embedding."),
      DMUON_KEY("model.bias", model.bias, of_family("gpt2", any()), "Whether linear layers and LayerNorms have biases."),
      DMUON_KEY("model.dropout", model.dropout, of_family("gpt2", below_one()),
                "Dropout probability of embeddings, attention and residual branches."),
      DMUON_KEY(
          "model.initializer", model.initializer, one_of({"fixed", "fan_in"}),
          "Standard deviation of a matrix's initial weights: model.initializer_deviation, or 1/sqrt(its inputs); residual projections "
          "divide it by sqrt(2 layers)."),
      DMUON_KEY("model.initializer_deviation", model.initializer_deviation, between(0, 10),
                "Standard deviation of initial embeddings and heads and, with initializer fixed, of matrices."),
      DMUON_KEY("model.feed_forward_width", model.feed_forward_width, between(0, largest_size),
                "Width inside the feed-forward half; 0: 4 x model.width."),
      DMUON_KEY("model.key_value_heads", model.key_value_heads, of_family("qwen", between(0, 4096)),
                "Heads of keys and values, shared by groups of query heads; divides model.heads; 0: model.heads."),
      DMUON_KEY("model.head_width", model.head_width, of_family("qwen", between(0, largest_size)),
                "Channels of a head, an even number; 0: model.width / model.heads."),
      DMUON_KEY("model.rotary_base", model.rotary_base, of_family("qwen", between(1, 1e11)),
                "Theta of rotary positions: pair i of a head of D channels turns by position x theta^(-2i/D)."),
      DMUON_KEY(
          "model.maximum_positions", model.maximum_positions, of_family("qwen", between(0, 2147483647)),
          "Positions that the model was made for where a run trains on shorter contexts, for max_position_embeddings of an export; 0: "
          "model.context_length. A model from a Hugging Face directory keeps its own. Nothing else depends on it."),
      DMUON_KEY("model.attention_bias", model.attention_bias, of_family("qwen", any()),
                "Whether query, key and value have biases (Qwen2 and Qwen2.5 have, Qwen3 has not)."),
      DMUON_KEY("model.query_key_normalization", model.query_key_normalization, of_family("qwen", any()),
                "Whether every query and key head is normalised by its root mean square (Qwen3)."),
      DMUON_KEY(
          "model.from", model.from, any(),
          "Hugging Face directory (GPT-2, Qwen2, Qwen2.5, Qwen3) that gives the keys of its config.json, the initial weights and, where "
          "data.tokenizer is not set, the tokenizer; empty: random weights."),
  };
}

Rows data_rows() {
  return {
      DMUON_KEY("data.train", data.train, any(), "Training files: paths or glob patterns, in this order."),
      DMUON_KEY("data.validation", data.validation, any(), "Validation files; empty: the end of the training data is split off."),
      DMUON_KEY("data.validation_fraction", data.validation_fraction, below_one(),
                "Share of the training data split off for validation where data.validation is empty; 0: no validation."),
      DMUON_KEY("data.format", data.format, one_of({"auto", "text", "nanogpt", "llmc"}),
                "Format of the files: UTF-8 text, nanoGPT uint16 tokens or llm.c shards; auto decides by header and file name."),
      DMUON_KEY("data.tokenizer", data.tokenizer, any(),
                "Tokenizer of text files: character (those of the training text), byte, or the path of a tokenizer.json or of a folder "
                "that holds one or encoder.json with vocab.bpe; token shards need none."),
  };
}

Rows training_rows() {
  return {
      DMUON_KEY("training.steps", training.steps, between(1, 1e12), "Optimizer steps of the whole run."),
      DMUON_KEY("training.batch_tokens", training.batch_tokens, between(1, 1e12),
                "Global batch of a step in tokens, whatever the ranks; a multiple of model.context_length."),
      DMUON_KEY("training.micro_batch_size", training.micro_batch_size, between(0, 1e9),
                "Sequences a rank computes at once; 0: its whole share of the batch."),
      DMUON_KEY("training.recompute", training.recompute, any(),
                "Whether backward computes each block's activations again instead of keeping them."),
      DMUON_KEY("training.gradient_clip", training.gradient_clip, at_least(0), "Largest global gradient norm; 0: no clipping."),
      DMUON_KEY("training.non_finite", training.non_finite, one_of({"stop", "skip"}),
                "On NaN or Inf in loss or gradients: end the run (exit code 3), or leave the step's update out."),
      DMUON_KEY("training.maximum_skips", training.maximum_skips, between(1, 1e9),
                "Steps skipped in a row before the run stops after all."),
      DMUON_KEY("training.replica_check_interval", training.replica_check_interval, between(0, 1e12),
                "Steps between comparisons of parameter hashes over all ranks; 0: never."),
  };
}

Rows distribution_rows() {
  return {
      DMUON_KEY("distribution.method", distribution.method, one_of({"owner", "gather", "replicated"}),
                "Who updates a matrix: its one owner; every rank on gathered gradients, keeping its slice; or every rank with all state."),
      DMUON_KEY("distribution.stage", distribution.stage, between(1, 3),
                "What is sharded: 1 optimizer state, 2 reduced gradients as well, 3 parameters as well."),
      DMUON_KEY("distribution.unit_stages", distribution.unit_stages, any(),
                "Stages of single units, each as pattern=stage over unit names (\"blocks.*=3\"); the first that matches holds."),
      DMUON_KEY("distribution.nodes", distribution.nodes, between(0, 65536),
                "Nodes of the rank grid; 0: the machine's; more than there are makes virtual nodes of equal size."),
      DMUON_KEY(
          "distribution.replicas", distribution.replicas, between(0, 65536),
          "Replicas of the shard group: communication has two levels, between and inside them; 0: one per node, with a voting rule one "
          "per rank."),
      DMUON_KEY("distribution.planner", distribution.planner, one_of({"greedy", "milp", "round_robin", "rank0"}),
                "How matrices get owners: longest processing time first, integer programming, in turn, or all on rank 0."),
      DMUON_KEY(
          "distribution.planner_time_limit_seconds", distribution.planner_time_limit_seconds, above(0),
          "Longest search of planner milp, in seconds; the best plan so far, or greedy's, is then taken. Twice this and 60 s must fit "
          "communication.start_timeout_seconds."),
      DMUON_KEY(
          "distribution.memory_limit_bytes", distribution.memory_limit_bytes, between(0, 9e18),
          "Masters, reduced gradients and optimizer state of the slots that a rank owns, at most, in bytes (method owner); 0: no bound."),
      DMUON_KEY("distribution.cost_model", distribution.cost_model, one_of({"flops", "measured"}),
                "What an update costs the planner: counted FLOPs, or updates timed on this machine (kept in the tuning cache)."),
      DMUON_KEY("distribution.window_units", distribution.window_units, between(1, 65536),
                "Consecutive units whose updates are batched together before they are published."),
      DMUON_KEY("distribution.look_ahead", distribution.look_ahead, between(1, 65536),
                "Units whose parameters are fetched ahead (stage 3) and gradients in flight while others compute."),
      DMUON_KEY("distribution.overlap", distribution.overlap, any(),
                "Whether communication runs beside compute; false waits for every collective at once, with the same results."),
      DMUON_KEY("distribution.reduce", distribution.reduce, one_of({"auto", "last", "every"}),
                "When gradients of several micro-batches leave: after the last (stage 1 only), or after every one; auto: by stage."),
      DMUON_KEY("distribution.publish_form", distribution.publish_form, one_of({"auto", "all_gather", "broadcasts", "padded"}),
                "Collective that publishes a unit, with equal results; auto: the cheapest by measured cost."),
      DMUON_KEY("distribution.vote_transport", distribution.vote_transport,
                one_of({"auto", "int8_sum", "packed_gather", "packed_scatter", "hierarchical"}),
                "How the signs of voting rules travel between replicas, with equal results; auto: the cheapest by measured link costs."),
      DMUON_KEY("distribution.compute_dtype", distribution.compute_dtype, one_of({"float32", "bfloat16"}),
                "Element type of published parameters; every rank computes with the published value, masters stay float32. A device that "
                "computes in bfloat16 (CUDA) keeps activations and multiplies in it, too; the CPU widens the values to float32."),
      DMUON_KEY("distribution.gradient_dtype", distribution.gradient_dtype, one_of({"float32", "bfloat16"}),
                "Element type in which gradients travel, node sums between nodes too; each level adds in float32."),
      DMUON_KEY("distribution.cut_elements", distribution.cut_elements, between(1, 1e12),
                "Element-wise tensors may be cut between ranks at multiples of this many elements."),
      DMUON_KEY("communication.start_timeout_seconds", communication.start_timeout_seconds, above(0),
                "Deadline of collectives before the first step, in seconds."),
      DMUON_KEY("communication.step_timeout_seconds", communication.step_timeout_seconds, above(0),
                "Deadline of collectives during steps, in seconds."),
      DMUON_KEY("communication.checkpoint_timeout_seconds", communication.checkpoint_timeout_seconds, above(0),
                "Deadline of collectives while a checkpoint is saved or loaded, in seconds."),
      DMUON_KEY("tuning.enabled", tuning.enabled, any(),
                "Whether batch and placement on threads of Newton-Schulz are measured before the first step; results never change."),
      DMUON_KEY("tuning.cache_directory", tuning.cache_directory, any(),
                "Where measurements are kept between runs; empty: dmuon below $XDG_CACHE_HOME or ~/.cache."),
  };
}

Rows output_rows() {
  return {
      DMUON_KEY("evaluation.interval", evaluation.interval, between(0, 1e12), "Steps between evaluations; 0: only at the end."),
      DMUON_KEY("evaluation.batch_size", evaluation.batch_size, between(1, 1e9), "Sequences a rank evaluates at once."),
      DMUON_KEY("evaluation.maximum_tokens", evaluation.maximum_tokens, between(0, 1e15),
                "Validation tokens per evaluation, from the start of the split; 0: all."),
      DMUON_KEY("sample.interval", sample.interval, between(0, 1e12), "Steps between text samples; 0: only at the end."),
      DMUON_KEY("sample.prompt", sample.prompt, any(), "Text that samples continue."),
      DMUON_KEY("sample.tokens", sample.tokens, between(0, 1e9), "Tokens generated per sample; 0: no samples."),
      DMUON_KEY("sample.temperature", sample.temperature, between(0, 100), "Divides the logits; 0: always the likeliest token."),
      DMUON_KEY("sample.top_k", sample.top_k, between(0, largest_size), "Only the k likeliest tokens are drawn; 0: all."),
      DMUON_KEY("sample.top_p", sample.top_p, above_up_to(0, 1),
                "Only the likeliest tokens that together have this probability are drawn; 1: all."),
      DMUON_KEY("sample.seed", sample.seed, between(0, largest_seed), "Seed of sampling, independent of the training seed."),
      DMUON_KEY("sample.count", sample.count, between(0, 1e6), "Texts per sample; 0: no samples."),
      DMUON_KEY("checkpoint.interval", checkpoint.interval, between(0, 1e12), "Steps between checkpoints; 0: none on the way."),
      DMUON_KEY("checkpoint.keep", checkpoint.keep, between(1, 1e9), "Complete checkpoints kept, the newest ones."),
      DMUON_KEY("checkpoint.at_end", checkpoint.at_end, any(), "Whether the last step is saved."),
      DMUON_KEY("checkpoint.on_failure", checkpoint.on_failure, one_of({"stop", "continue"}),
                "When a checkpoint cannot be written: end the run (exit code 5), or warn and go on."),
      DMUON_KEY("checkpoint.maximum_failures", checkpoint.maximum_failures, between(1, 1e9),
                "Failed checkpoints in a row before a run that continues stops after all."),
      DMUON_KEY("logging.interval", logging.interval, between(1, 1e12), "Steps between progress lines."),
      DMUON_KEY("logging.level", logging.level, one_of({"debug", "information", "warning", "error"}), "Least severe messages shown."),
  };
}
#undef DMUON_KEY

}  // namespace

const std::vector<BoundKey<Configuration>>& configuration_rows() {
  static const Rows rows = [] {
    Rows all;
    for (Rows part : {run_rows(), model_rows(), data_rows(), training_rows(), distribution_rows(), output_rows()})
      for (auto& each : part) all.push_back(std::move(each));
    for (auto& each : all)
      if (each.key.path == "output") each.key.default_value = Json();  // follows from `name`
    return all;
  }();
  return rows;
}

}  // namespace dmuon
