#include <cmath>
#include <fstream>

#include "dmuon/core/error.h"
#include "dmuon/train/generator.h"
#include "support/catch.h"
#include "train/metrics.h"
#include "train/run.h"

using namespace dmuon;

TEST_CASE("sampling: temperature 0, top-k, top-p, and frequencies") {
  const std::vector<float> logits{1.0f, 3.0f, 2.0f, -std::numeric_limits<float>::infinity()};
  GenerationOptions options;
  options.temperature = 0.0;
  CHECK(sample_token(logits, options, 0) == 1);
  options.temperature = 1.0;
  options.top_k = 1;
  for (uint64_t draw = 0; draw < 50; ++draw) CHECK(sample_token(logits, options, draw) == 1);
  options.top_k = 0;
  options.top_p = 0.5;  // the most likely token alone has 0.665
  for (uint64_t draw = 0; draw < 50; ++draw) CHECK(sample_token(logits, options, draw) == 1);
  options.top_p = 1.0;
  std::array<int, 4> counts{};
  for (uint64_t draw = 0; draw < 20000; ++draw) ++counts[static_cast<size_t>(sample_token(logits, options, draw))];
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0);
  CHECK(counts[0] == Approx(20000 * std::exp(1.0) / sum).epsilon(0.08));
  CHECK(counts[1] == Approx(20000 * std::exp(3.0) / sum).epsilon(0.04));
  CHECK(counts[3] == 0);
}

TEST_CASE("metrics: resuming drops later lines and a line cut in two; NaN stays valid JSON") {
  const Path path = std::filesystem::temp_directory_path() / ("dmuon-metrics-" + std::to_string(getpid()) + ".jsonl");
  {
    MetricsFile file(path, 0);
    for (int64_t step : {1, 2, 3, 4}) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.train_loss = step == 2 ? std::nan("") : 1.5;
      file.append(to_json(metrics));
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 5, \"tok";
  { MetricsFile file(path, 3); }
  std::ifstream in(path);
  int64_t expected = 1;
  for (std::string line; std::getline(in, line); ++expected) CHECK(parse_json(line, "line").at("step").as_integer() == expected);
  CHECK(expected == 4);
  { MetricsFile file(path, 0); }
  CHECK(std::filesystem::file_size(path) == 0);
  std::filesystem::remove(path);
}

TEST_CASE("the global batch is fixed in tokens; micro-batches follow the ranks") {
  Configuration configuration;
  configuration.model.context_length = 64;
  configuration.training.batch_tokens = 640;
  for (int ranks : {1, 2, 3, 4, 16}) {
    for (int64_t micro : {0, 1, 3, 100}) {
      configuration.training.micro_batch_size = micro;
      const StepShape shape = step_shape(configuration, ranks);
      CHECK(shape.global_batch == 10);
      CHECK(shape.micro_batch_size >= 1);
      int64_t samples = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Block mine = block(10, rank, ranks);
        CHECK(mine.first == samples);
        samples += mine.count;
        CHECK(shape.micro_batches * shape.micro_batch_size >= mine.count);
      }
      CHECK(samples == 10);
    }
  }
}
