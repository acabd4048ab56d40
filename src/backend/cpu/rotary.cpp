#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/rotary_angles.h"

namespace dmuon::cpu {
namespace {

constexpr int64_t worthwhile_elements = 16384, worthwhile_angles = 65536;

// Cosine and sine of every pair at every position that occurs, taken once a launch by the C library: sequences of a batch share
// positions and heads share angles, so this is a small part of the work and exact to a unit in the last place at any position.
class Turns {
 public:
  Turns(const Team& team, const Tensor& positions, int64_t channels, double theta) : half_(channels / 2) {
    const int32_t* position = positions.data<int32_t>();
    const int64_t rows = positions.elements();
    std::vector<int32_t> distinct(position, position + rows);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    places_.resize(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row)
      places_[static_cast<size_t>(row)] =
          static_cast<int32_t>(std::lower_bound(distinct.begin(), distinct.end(), position[row]) - distinct.begin());

    std::vector<float> frequencies(static_cast<size_t>(half_));
    for (int64_t i = 0; i < half_; ++i) frequencies[static_cast<size_t>(i)] = rotary_frequency(theta, i, channels);
    const auto count = static_cast<int64_t>(distinct.size());
    cosines_.resize(static_cast<size_t>(count * half_));
    sines_.resize(cosines_.size());
    team.split(count, 1, worthwhile_angles / std::max<int64_t>(1, half_), [&](int, int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t i = 0; i < half_; ++i) {
          const float angle = static_cast<float>(distinct[static_cast<size_t>(p)]) * frequencies[static_cast<size_t>(i)];
          cosines_[static_cast<size_t>(p * half_ + i)] = std::cos(angle);
          sines_[static_cast<size_t>(p * half_ + i)] = std::sin(angle);
        }
    });
  }

  void give(simd::RotaryTask& task) const { task.cosines = cosines_.data(), task.sines = sines_.data(), task.places = places_.data(); }

 private:
  int64_t half_;
  std::vector<int32_t> places_;
  std::vector<float> cosines_, sines_;
};

simd::RotaryTask task_of(const RotaryForward& f, const Tensor& like) {
  simd::RotaryTask task;
  task.heads = like.size(1), task.channels = like.size(2);
  task.input = optional_data(f.input), task.weight = optional_data(f.weight);
  task.epsilon = static_cast<float>(f.epsilon);
  task.output = optional_data(f.output), task.inverse_deviation = optional_data(f.inverse_deviation);
  return task;
}

}  // namespace

void Attention::rotary_forward(Stream& stream, const RotaryForward& f) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "rotary_forward", 0, {f.input, f.positions, f.weight, f.output, f.inverse_deviation}, [=, &simd] {
    const Turns turns(team, f.positions, f.input.size(2), f.theta);
    simd::RotaryTask task = task_of(f, f.input);
    turns.give(task);
    team.split(f.input.size(0), 1, worthwhile_elements / std::max<int64_t>(1, task.heads * task.channels),
               [&](int, int64_t begin, int64_t end) { simd.rotary_forward(task, begin, end); });
  });
}

void Attention::rotary_backward(Stream& stream, const RotaryBackward& b) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const RotaryForward& f = b.forward;
  const RowBlocks blocks(b.d_output.size(0));
  const int64_t channels = b.d_output.size(2);
  const Tensor partials =
      backend_.workspace(b.d_weight.defined() ? blocks.count * channels : 0, "partial weight sums of a rotary backward");
  backend_.launch(stream, "rotary_backward", 0,
                  {f.input, f.positions, f.weight, f.inverse_deviation, b.d_output, b.d_input, b.d_weight, partials}, [=, &simd] {
                    const Turns turns(team, b.forward.positions, channels, b.forward.theta);
                    simd::RotaryTask task = task_of(b.forward, b.d_output);
                    turns.give(task);
                    task.d_output = b.d_output.data<float>(), task.d_input = b.d_input.data<float>();
                    float* sums = optional_data(partials);
                    team.split(blocks.count, 1, 2, [&](int, int64_t begin, int64_t end) {
                      for (int64_t block = begin; block < end; ++block)
                        simd.rotary_backward(task, blocks.begin(block), blocks.end(block), sums ? sums + block * channels : nullptr);
                    });
                    if (sums) add_partials(simd, team, sums, blocks.count, b.accumulate_weight, b.d_weight);
                  });
}

}  // namespace dmuon::cpu
