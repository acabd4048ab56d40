// Matrices whose singular values strain a Newton-Schulz iteration, for the tests and for `dmuon_bench newton-schulz-error`.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dmuon/core/random.h"

namespace dmuon::test {

struct StrainedMatrix {
  std::string spectrum;
  std::vector<double> values;  // [rows, columns], rounded to float32, Frobenius norm about 1
};

// `vectors` orthonormal rows of `length`, from normal numbers by Gram-Schmidt, twice.
inline std::vector<double> orthonormal_rows(uint64_t seed, int64_t vectors, int64_t length) {
  const Random random(seed, RandomStream::test);
  std::vector<double> rows(static_cast<size_t>(vectors * length));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = random.normal(i);
  for (int64_t i = 0; i < vectors; ++i) {
    double* row = rows.data() + i * length;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * length;
        double dot = 0;
        for (int64_t k = 0; k < length; ++k) dot += row[k] * other[k];
        for (int64_t k = 0; k < length; ++k) row[k] -= dot * other[k];
      }
    double square = 0;
    for (int64_t k = 0; k < length; ++k) square += row[k] * row[k];
    for (int64_t k = 0; k < length; ++k) row[k] /= std::sqrt(square);
  }
  return rows;
}

// Linear, 3, 5 and 7 decades, half of them zero, rank 10, 2 and 1, 1/i^2, and a Gaussian matrix.
inline std::vector<StrainedMatrix> strained_matrices(int64_t rows, int64_t columns) {
  const int64_t n = std::min(rows, columns);
  const auto spectrum = [n](auto value) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(value(static_cast<double>(i)));
    return values;
  };
  const auto decades = [&](double count) {
    return spectrum([=](double i) { return std::pow(10.0, -count * i / static_cast<double>(n)); });
  };
  const auto rank = [&](double count) { return spectrum([=](double i) { return i < count ? 1.0 : 0.0; }); };
  const std::vector<std::pair<std::string, std::vector<double>>> spectra = {
      {"linear", spectrum([=](double i) { return 1.0 - i / static_cast<double>(n); })},
      {"3 decades", decades(3)},
      {"5 decades", decades(5)},
      {"7 decades", decades(7)},
      {"half zero", rank(static_cast<double>(n / 2))},
      {"rank 10", rank(10)},
      {"rank 2", rank(2)},
      {"rank 1", rank(1)},
      {"1 / i^2", spectrum([](double i) { return 1.0 / ((i + 1.0) * (i + 1.0)); })},
  };
  const std::vector<double> left = orthonormal_rows(1, n, rows), right = orthonormal_rows(2, n, columns);
  std::vector<StrainedMatrix> matrices;
  const auto add = [&](const std::string& name, std::vector<double> values) {
    double square = 0;
    for (double value : values) square += value * value;
    for (double& value : values) value = static_cast<double>(static_cast<float>(value / std::sqrt(square)));
    matrices.push_back({name, std::move(values)});
  };
  for (const auto& [name, singular_values] : spectra) {
    std::vector<double> values(static_cast<size_t>(rows * columns), 0.0);
    for (int64_t s = 0; s < n; ++s) {
      if (singular_values[static_cast<size_t>(s)] == 0.0) continue;
      for (int64_t i = 0; i < rows; ++i) {
        const double factor = singular_values[static_cast<size_t>(s)] * left[static_cast<size_t>(s * rows + i)];
        for (int64_t j = 0; j < columns; ++j)
          values[static_cast<size_t>(i * columns + j)] += factor * right[static_cast<size_t>(s * columns + j)];
      }
    }
    add(name, std::move(values));
  }
  const Random random(3, RandomStream::test);
  std::vector<double> gaussian(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < gaussian.size(); ++i) gaussian[i] = random.normal(i);
  add("Gaussian", std::move(gaussian));
  return matrices;
}

// The largest singular value of [rows, columns], by power iteration.
inline double spectral_norm(const std::vector<double>& values, int64_t rows, int64_t columns, int iterations = 200) {
  const Random random(4, RandomStream::test);
  std::vector<double> right(static_cast<size_t>(columns)), left(static_cast<size_t>(rows));
  for (size_t j = 0; j < right.size(); ++j) right[j] = random.normal(j);
  double norm = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (int64_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < columns; ++j) sum += values[static_cast<size_t>(i * columns + j)] * right[static_cast<size_t>(j)];
      left[static_cast<size_t>(i)] = sum;
    }
    std::fill(right.begin(), right.end(), 0.0);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        right[static_cast<size_t>(j)] += values[static_cast<size_t>(i * columns + j)] * left[static_cast<size_t>(i)];
    double square = 0;
    for (double value : right) square += value * value;
    norm = std::sqrt(std::sqrt(square));  // of v -> A^T A v for a unit v: sigma^2
    if (!(square > 0)) return norm;
    for (double& value : right) value /= std::sqrt(square);
  }
  return norm;
}

}  // namespace dmuon::test
