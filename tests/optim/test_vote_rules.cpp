// The rules with a vote against their literal definition: plain loops in double, several workers and steps.
#include <algorithm>

#include "dmuon/optim/lion.h"
#include "dmuon/optim/sign_adam.h"
#include "dmuon/optim/sign_muon.h"
#include "dmuon/optim/signum.h"
#include "optim/vote_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

// One tensor [rows, columns] on several workers, everything spelled out.
struct Literal {
  int64_t rows = 1, columns = 1;
  Values parameter, first, second;  // the moments of SignAdam
  std::vector<Values> momentum;     // by worker
  double closest = INFINITY;        // smallest |message| seen, relative to the message's size

  Literal(int workers, const Shape& shape, uint64_t seed) {
    rows = shape.rank() > 1 ? shape[0] : 1;
    columns = shape.elements() / rows;
    parameter = normal_values(seed, shape.elements());
    for (double& each : parameter) each = static_cast<float>(each);
    first = second = Values(parameter.size(), 0.0);
    momentum.assign(static_cast<size_t>(workers), first);
  }

  // Majority of > 0; of an even number of workers one, in turn, decides ties.
  Values vote(const std::vector<Values>& messages, int64_t step) {
    Values signs;
    for (size_t i = 0; i < parameter.size(); ++i) {
      double balance = 0;
      for (const Values& message : messages) {
        balance += message[i] > 0 ? 1 : -1;
        closest = std::fmin(closest, std::fabs(message[i]) / norm_of(message));
      }
      if (balance == 0) balance = messages[static_cast<size_t>(step) % messages.size()][i] > 0 ? 1 : -1;
      signs.push_back(balance > 0 ? 1 : -1);
    }
    return signs;
  }
};

// X / ||X||_F, then x <- 3.4445 x - 4.7750 x x^T x + 2.0315 (x x^T)^2 x, `iterations` times.
Values newton_schulz(const Values& matrix, int64_t rows, int64_t columns, int iterations) {
  const double norm = norm_of(matrix);
  Values x = matrix;
  for (double& each : x) each /= norm;
  const auto at = [columns](int64_t r, int64_t c) { return static_cast<size_t>(r * columns + c); };
  const auto gram_times = [&](const Values& y) {  // x x^T y
    Values out(y.size(), 0.0);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < columns; ++k) dot += x[at(i, k)] * x[at(j, k)];
        for (int64_t k = 0; k < columns; ++k) out[at(i, k)] += dot * y[at(j, k)];
      }
    return out;
  };
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const Values cubic = gram_times(x), quintic = gram_times(cubic);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * cubic[i] + 2.0315 * quintic[i];
  }
  return x;
}

constexpr double learning_rate = 1.0 / 64, decay = 0.25;

std::vector<std::vector<Values>> gradients_of(int workers, const std::vector<Shape>& shapes, int64_t step) {
  std::vector<std::vector<Values>> all(static_cast<size_t>(workers));
  for (size_t worker = 0; worker < all.size(); ++worker)
    for (size_t i = 0; i < shapes.size(); ++i) {
      Values values = normal_values(static_cast<uint64_t>(step) * 1000 + worker * 100 + i + 7, shapes[i].elements());
      for (double& each : values) each = static_cast<float>(each);
      all[worker].push_back(values);
    }
  return all;
}

// Runs rule and literal definition side by side and compares parameters after every step. `advance` does one literal step.
void compare(const MakeRule& make, const std::vector<Shape>& shapes, int workers,
             const std::function<void(Literal&, const std::vector<Values>& gradients, int64_t step)>& advance) {
  for (const bool device : {false, true}) {
    const auto backend = device ? make_test_backend() : reference_backend();
    Workers found(*backend, make, workers, shapes);
    std::vector<Literal> expected;
    for (size_t i = 0; i < shapes.size(); ++i) expected.emplace_back(workers, shapes[i], i);
    for (int64_t step = 1; step <= 4; ++step) {
      const auto gradients = gradients_of(workers, shapes, step);
      found.step(step, learning_rate, gradients);
      for (size_t i = 0; i < shapes.size(); ++i) {
        std::vector<Values> mine;
        for (const auto& each : gradients) mine.push_back(each[i]);
        advance(expected[i], mine, step);
        INFO(backend->name() << ", " << workers << " workers, tensor " << i << ", step " << step);
        REQUIRE(expected[i].closest > 1e-6);  // no sign hangs on rounding
        CHECK(largest_difference(found.parameter(i), expected[i].parameter) < 1e-5);
        for (size_t worker = 1; worker < found.count(); ++worker) CHECK((found.parameter(i, worker) == found.parameter(i)));
      }
    }
  }
}

const std::vector<Shape> matrices = {{5, 7}, {9, 4}, {5, 7}, {1, 6}, {2, 2, 3, 3}, {6, 6}};
const std::vector<Shape> tensors = {{5, 7}, {9}, {3, 33}, {1}, {70}};

double shape_factor(RateShape shape, const Literal& literal) {
  if (shape == RateShape::unit_gain) return 1.0 / std::sqrt(static_cast<double>(literal.columns));
  return shape == RateShape::mup ? 1.0 / static_cast<double>(literal.columns) : 1.0;
}

void take_step(Literal& literal, const Values& direction, double scale, double decoupled) {
  for (size_t i = 0; i < direction.size(); ++i)
    literal.parameter[i] = literal.parameter[i] * (1.0 - learning_rate * decoupled) - learning_rate * scale * direction[i];
}

// g + decay * p where the decay is coupled.
Values folded(const Literal& literal, Values gradient, const VoteOptions& options) {
  if (options.decay == DecayMode::coupled)
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += options.weight_decay * literal.parameter[i];
  return gradient;
}
double decoupled(const VoteOptions& options) { return options.decay == DecayMode::decoupled ? options.weight_decay : 0.0; }

// m and what the momentum gives out.
Values momentum_step(Values& m, const Values& g, double beta, bool sum, bool nesterov) {
  Values out;
  const double fresh = sum ? 1.0 : 1.0 - beta;
  for (size_t i = 0; i < g.size(); ++i) {
    m[i] = beta * m[i] + fresh * g[i];
    out.push_back(nesterov ? fresh * g[i] + beta * m[i] : m[i]);
  }
  return out;
}

}  // namespace

TEST_CASE("Sign-Muon is the vote on orthogonalised momenta", "[device][sign_muon]") {
  SignMuonOptions options;
  int workers = 3;
  SECTION("defaults") {}
  SECTION("one worker") { workers = 1; }
  SECTION("two workers, ties in turn") { workers = 2; }
  SECTION("heavy ball with nesterov") { options.momentum_form = MomentumForm::sum, options.nesterov = true; }
  SECTION("decoupled decay, unit gain") { options.weight_decay = decay, options.rate_shape = RateShape::unit_gain; }
  SECTION("coupled decay, muP") { options.weight_decay = decay, options.decay = DecayMode::coupled, options.rate_shape = RateShape::mup; }
  SECTION("one iteration, Gram form") { options.newton_schulz.iterations = 1, options.newton_schulz.form = IterationForm::gram; }
  SECTION("direct form") { options.newton_schulz.form = IterationForm::direct; }
  SECTION("orthogonalised vote") { options.post_polar = true, options.weight_decay = decay; }
  const int iterations = options.newton_schulz.iterations > 0 ? options.newton_schulz.iterations : 5;
  compare(
      [&] { return make_sign_muon(options); }, matrices, workers,
      [&](Literal& literal, const std::vector<Values>& gradients, int64_t step) {
        std::vector<Values> messages;
        for (size_t worker = 0; worker < gradients.size(); ++worker)
          messages.push_back(newton_schulz(momentum_step(literal.momentum[worker], folded(literal, gradients[worker], options),
                                                         options.momentum, options.momentum_form == MomentumForm::sum, options.nesterov),
                                           literal.rows, literal.columns, iterations));
        const Values signs = literal.vote(messages, step);
        if (!options.post_polar) return take_step(literal, signs, shape_factor(options.rate_shape, literal), decoupled(options));
        const double ratio = static_cast<double>(literal.rows) / static_cast<double>(literal.columns);
        take_step(literal, newton_schulz(signs, literal.rows, literal.columns, iterations), std::sqrt(std::max(1.0, ratio)),
                  decoupled(options));
      });
}

TEST_CASE("Signum is the vote on momenta, signSGD on gradients", "[device][signum]") {
  SignumOptions options;
  int workers = 3;
  SECTION("defaults") {}
  SECTION("two workers") { workers = 2; }
  SECTION("signSGD") { options.momentum = 0.0; }
  SECTION("signSGD with coupled decay") { options.momentum = 0.0, options.weight_decay = decay, options.decay = DecayMode::coupled; }
  SECTION("heavy ball with nesterov") { options.momentum_form = MomentumForm::sum, options.nesterov = true; }
  SECTION("decoupled decay, unit gain") { options.weight_decay = decay, options.rate_shape = RateShape::unit_gain; }
  SECTION("coupled decay, muP") { options.weight_decay = decay, options.decay = DecayMode::coupled, options.rate_shape = RateShape::mup; }
  compare([&] { return make_signum(options); }, tensors, workers,
          [&](Literal& literal, const std::vector<Values>& gradients, int64_t step) {
            std::vector<Values> messages;
            for (size_t worker = 0; worker < gradients.size(); ++worker)
              messages.push_back(momentum_step(literal.momentum[worker], folded(literal, gradients[worker], options), options.momentum,
                                               options.momentum_form == MomentumForm::sum, options.nesterov));
            take_step(literal, literal.vote(messages, step), shape_factor(options.rate_shape, literal), decoupled(options));
          });
}

TEST_CASE("SignAdam is Adam on the vote of raw gradients", "[device][sign_adam]") {
  SignAdamOptions options;
  int workers = 3;
  SECTION("defaults") {}
  SECTION("two workers, decoupled decay by the base rate") {
    workers = 2;
    options.weight_decay = decay, options.rate_shape = RateShape::unit_gain;
  }
  SECTION("coupled decay") { options.weight_decay = decay, options.decay = DecayMode::coupled, options.epsilon = 0.5; }
  compare([&] { return make_sign_adam(options); }, tensors, workers,
          [&](Literal& literal, const std::vector<Values>& gradients, int64_t step) {
            std::vector<Values> messages;
            for (const Values& gradient : gradients) messages.push_back(folded(literal, gradient, options));
            const Values signs = literal.vote(messages, step);
            Values direction;
            for (size_t i = 0; i < signs.size(); ++i) {
              literal.first[i] = options.beta1 * literal.first[i] + (1 - options.beta1) * signs[i];
              literal.second[i] = options.beta2 * literal.second[i] + (1 - options.beta2) * signs[i] * signs[i];
              const double first = literal.first[i] / (1 - std::pow(options.beta1, static_cast<double>(step)));
              const double second = literal.second[i] / (1 - std::pow(options.beta2, static_cast<double>(step)));
              direction.push_back(first / (std::sqrt(second) + options.epsilon));
            }
            take_step(literal, direction, shape_factor(options.rate_shape, literal), decoupled(options));
          });
}

TEST_CASE("Lion votes on the mix of gradient and momentum, then advances the momentum", "[device][lion]") {
  LionOptions options;
  int workers = 3;
  SECTION("defaults") {}
  SECTION("other betas, decoupled decay") { options.beta1 = 0.5, options.beta2 = 0.75, options.weight_decay = decay; }
  SECTION("two workers, coupled decay") {
    workers = 2;
    options.weight_decay = decay, options.decay = DecayMode::coupled, options.rate_shape = RateShape::unit_gain;
  }
  compare([&] { return make_lion(options); }, tensors, workers,
          [&](Literal& literal, const std::vector<Values>& gradients, int64_t step) {
            std::vector<Values> messages;
            for (size_t worker = 0; worker < gradients.size(); ++worker) {
              const Values g = folded(literal, gradients[worker], options);
              Values message, &m = literal.momentum[worker];
              for (size_t i = 0; i < g.size(); ++i) {
                message.push_back(options.beta1 * m[i] + (1 - options.beta1) * g[i]);
                m[i] = options.beta2 * m[i] + (1 - options.beta2) * g[i];
              }
              messages.push_back(message);
            }
            take_step(literal, literal.vote(messages, step), shape_factor(options.rate_shape, literal), decoupled(options));
          });
}
