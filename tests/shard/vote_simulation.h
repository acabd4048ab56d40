// What a job whose ranks agree by vote must compute, written down plainly: M workers in one process, double loops over
// elements, no packing, no transport, no rule and no kernel. Only the definition of the sign of an exact zero (signs.h) is
// shared, which is part of the format.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dmuon/backend/signs.h"

namespace dmuon::testing {

enum class Kind { mean, sign_muon, signum, sign_adam, lion };

struct SimulatedTensor {
  std::string name;
  int64_t rows = 1, columns = 1;
  Kind kind = Kind::mean;
  bool post_polar = false;  // the vote is orthogonalised before it is applied
  int64_t heads = 1;        // blocks of rows that are orthogonalised each by itself
};

// Gradient of an element: worker -1 asks for the mean gradient of the job, others for the worker's share of it.
using GradientOf = std::function<float(const std::string& name, int64_t element, int64_t step, int worker)>;

struct SimulationOptions {
  int workers = 1;
  int64_t chunk = 16384;  // of row segments
  uint64_t seed = 0;
  double learning_rate = 0.02, weight_decay = 0.1;
  double clip = 0.0;  // 0: off
  bool clipping() const { return clip > 0.0; }
};

// Newton-Schulz with the quintic of Jordan et al. on X / ||X||_F, five steps, of a rows x columns matrix.
inline std::vector<double> orthogonalized(std::vector<double> x, int64_t rows, int64_t columns) {
  double square = 0.0;
  for (double value : x) square += value * value;
  for (double& value : x) value /= std::sqrt(square);
  const auto at = [columns](int64_t r, int64_t c) { return static_cast<size_t>(r * columns + c); };
  for (int step = 0; step < 5; ++step) {
    std::vector<double> gram(static_cast<size_t>(rows * rows), 0.0), next(x.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j)
        for (int64_t c = 0; c < columns; ++c) gram[static_cast<size_t>(i * rows + j)] += x[at(i, c)] * x[at(j, c)];
    std::vector<double> polynomial(gram.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j) {
        double squared = 0.0;
        for (int64_t k = 0; k < rows; ++k) squared += gram[static_cast<size_t>(i * rows + k)] * gram[static_cast<size_t>(k * rows + j)];
        polynomial[static_cast<size_t>(i * rows + j)] = -4.7750 * gram[static_cast<size_t>(i * rows + j)] + 2.0315 * squared;
      }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 3.4445 * x[at(i, c)];
        for (int64_t j = 0; j < rows; ++j) sum += polynomial[static_cast<size_t>(i * rows + j)] * x[at(j, c)];
        next[at(i, c)] = sum;
      }
    x = next;
  }
  return x;
}

// The same of every block of rows by itself.
inline std::vector<double> orthogonalized_heads(const std::vector<double>& x, const SimulatedTensor& tensor) {
  const int64_t count = tensor.rows / tensor.heads * tensor.columns;
  std::vector<double> result;
  for (int64_t head = 0; head < tensor.heads; ++head) {
    const auto part =
        orthogonalized({x.begin() + head * count, x.begin() + (head + 1) * count}, tensor.rows / tensor.heads, tensor.columns);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

class VoteSimulation {
 public:
  VoteSimulation(std::vector<SimulatedTensor> tensors, SimulationOptions options, GradientOf gradient)
      : tensors_(std::move(tensors)), options_(options), gradient_(std::move(gradient)) {}

  // Parameters at the start; of tensors that agree by vote they are what values() gives.
  void start(const std::string& name, const std::vector<float>& values) { values_[name].assign(values.begin(), values.end()); }
  const std::vector<double>& values(const std::string& name) const { return values_.at(name); }
  const std::vector<double>& norms() const { return norms_; }  // of each step's gradient
  // The smallest message that was not exactly zero: signs of smaller ones would depend on rounding.
  double margin() const { return margin_; }

  void step(int64_t number) {
    double square = 0.0;
    for (const SimulatedTensor& tensor : tensors_)
      for (int64_t i = 0; i < tensor.rows * tensor.columns; ++i)
        for (int worker = 0; worker < (tensor.kind == Kind::mean ? 1 : options_.workers); ++worker) {
          const double g = gradient_(tensor.name, i, number, tensor.kind == Kind::mean ? -1 : worker);
          square += tensor.kind == Kind::mean ? g * g : options_.workers * g * g;
        }
    norms_.push_back(std::sqrt(square));
    const double coefficient = options_.clipping() && norms_.back() > options_.clip ? options_.clip / norms_.back() : 1.0;
    for (const SimulatedTensor& tensor : tensors_)
      if (tensor.kind != Kind::mean) apply(tensor, vote(tensor, number, coefficient * options_.workers), number);
  }

 private:
  std::vector<double> message(const SimulatedTensor& tensor, int64_t number, int worker, double scale) {
    const auto elements = static_cast<size_t>(tensor.rows * tensor.columns);
    std::vector<double>& momentum = momenta_[tensor.name + "/" + std::to_string(worker)];
    momentum.resize(elements, 0.0);
    std::vector<double> result(elements);
    for (size_t i = 0; i < elements; ++i) {
      const double g = scale * gradient_(tensor.name, static_cast<int64_t>(i), number, worker);
      if (tensor.kind == Kind::sign_adam) {
        result[i] = g;
      } else if (tensor.kind == Kind::lion) {
        result[i] = 0.9 * momentum[i] + 0.1 * g;
        momentum[i] = 0.99 * momentum[i] + 0.01 * g;
      } else {
        momentum[i] = 0.9 * momentum[i] + 0.1 * g;
        result[i] = momentum[i];
      }
    }
    if (tensor.kind == Kind::sign_muon) {
      result = orthogonalized_heads(result, tensor);
      for (double value : result)
        if (value != 0.0) margin_ = std::min(margin_, std::abs(value));
    }
    return result;
  }

  // +1, -1, or 0 where no worker has anything to say.
  std::vector<int> vote(const SimulatedTensor& tensor, int64_t number, double scale) {
    std::vector<std::vector<double>> messages;
    for (int worker = 0; worker < options_.workers; ++worker) messages.push_back(message(tensor, number, worker, scale));
    const int64_t elements = tensor.rows * tensor.columns;
    std::map<std::pair<int64_t, int64_t>, bool> active;  // (row, chunk)
    for (const std::vector<double>& of_worker : messages)
      for (int64_t i = 0; i < elements; ++i)
        if (of_worker[static_cast<size_t>(i)] != 0.0) active[{i / tensor.columns, i / options_.chunk}] = true;
    std::vector<int> result;
    for (int64_t i = 0; i < elements; ++i) {
      int sum = 0;
      std::vector<int> signs;
      for (const std::vector<double>& of_worker : messages) {
        const double value = of_worker[static_cast<size_t>(i)];
        const bool zero_is_plus = zero_sign(sign_key(options_.seed, number, tensor.name), i);
        signs.push_back(value > 0.0 || (value == 0.0 && zero_is_plus) ? 1 : -1);
        sum += signs.back();
      }
      if (sum == 0) sum = signs[static_cast<size_t>(number % options_.workers)];
      result.push_back(active.count({i / tensor.columns, i / options_.chunk}) == 0 ? 0 : sum > 0 ? 1 : -1);
    }
    return result;
  }

  void apply(const SimulatedTensor& tensor, const std::vector<int>& votes, int64_t number) {
    std::vector<double>& values = values_.at(tensor.name);
    const double keep = 1.0 - options_.learning_rate * options_.weight_decay;
    std::vector<double> steps(votes.begin(), votes.end());
    if (tensor.post_polar) {
      steps = orthogonalized_heads(steps, tensor);
      const double rows = static_cast<double>(tensor.rows / tensor.heads);
      const double gain = std::sqrt(std::max(1.0, rows / static_cast<double>(tensor.columns)));
      for (double& step : steps) step *= gain;
    }
    for (size_t i = 0; i < votes.size(); ++i) {
      double step = steps[i];
      if (tensor.kind == Kind::sign_adam) {
        std::vector<double>&first = momenta_[tensor.name + "#1"], &second = momenta_[tensor.name + "#2"];
        first.resize(votes.size(), 0.0);
        second.resize(votes.size(), 0.0);
        first[i] = 0.9 * first[i] + 0.1 * step;
        second[i] = 0.95 * second[i] + 0.05 * step * step;
        const double root = std::sqrt(second[i] / (1.0 - std::pow(0.95, static_cast<double>(number))));
        step = first[i] / (1.0 - std::pow(0.9, static_cast<double>(number))) / (root + 1e-8);
      }
      values[i] = static_cast<float>(values[i] * keep - options_.learning_rate * step);
    }
  }

  std::vector<SimulatedTensor> tensors_;
  SimulationOptions options_;
  GradientOf gradient_;
  std::map<std::string, std::vector<double>> values_, momenta_;
  std::vector<double> norms_;
  double margin_ = 1e30;
};

}  // namespace dmuon::testing
