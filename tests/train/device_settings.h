// Settings of small runs on devices, which the stand-ins of tests/cuda_on_host are.
#pragma once

#include <string>
#include <vector>

#include "train/run_support.h"

namespace dmuon::testing {

inline const std::string cuda = "--set device=cuda ";
inline const std::string fewer = "--set training.steps=4 --set evaluation.interval=0 ";
inline const std::string plugins = text("DMUON_CUDA_PLUGIN=", DMUON_CUDA_ON_HOST, " DMUON_NCCL_PLUGIN=", DMUON_NCCL_ON_HOST, " ");

inline std::string distribution(const std::string& key, const std::string& value) {
  return text("--set 'distribution.", key, "=", value, "' ");
}

// The training losses of a run.
inline std::vector<double> losses(const SmallRun& run, const std::string& output) {
  std::vector<double> out;
  const std::string metrics = run.metrics(output);
  for (size_t at = metrics.find("train_loss="); at != std::string::npos; at = metrics.find("train_loss=", at + 1))
    out.push_back(std::stod(metrics.substr(at + 11)));
  return out;
}

}  // namespace dmuon::testing
