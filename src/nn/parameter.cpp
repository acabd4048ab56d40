#include "dmuon/nn/parameter.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::string_view name_of(ParameterRole role) {
  static constexpr std::string_view names[] = {"matrix", "embedding", "head", "vector", "buffer"};
  return names[static_cast<size_t>(role)];
}

int Inventory::add_unit(std::string name, bool tied) {
  units_.push_back({std::move(name), {}, tied});
  return static_cast<int>(units_.size()) - 1;
}

Variable Inventory::declare(int unit, std::string name, Shape shape, ParameterRole role, Initializer initializer, int64_t heads) {
  if (unit < 0 || unit >= static_cast<int>(units_.size()))
    throw ConfigError(text("parameter \"", name, "\" is declared in unit ", unit, ", but there are ", units_.size(), " units"));
  if (find(name) != nullptr) throw ConfigError(text("parameter \"", name, "\" is declared twice; names must be unique"));
  if (heads < 1 || (heads > 1 && (shape.rank() < 2 || shape[0] % heads != 0)))
    throw ConfigError(
        text("parameter \"", name, "\" ", shape.to_string(), " is declared to be of ", heads, " heads, which do not divide its rows"));
  ParameterDeclaration declaration;
  declaration.name = name;
  declaration.shape = shape;
  declaration.role = role;
  declaration.initializer = initializer;
  declaration.unit = unit;
  declaration.heads = heads;
  declaration.state = std::make_shared<ParameterState>();
  declaration.state->name = std::move(name);
  declaration.state->requires_gradient = role != ParameterRole::buffer;
  units_[static_cast<size_t>(unit)].parameters.push_back(static_cast<int>(parameters_.size()));
  parameters_.push_back(std::move(declaration));
  return Variable(parameters_.back().state);
}

const ParameterDeclaration* Inventory::find(std::string_view name) const {
  for (const ParameterDeclaration& parameter : parameters_)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

int64_t Inventory::elements() const {
  int64_t sum = 0;
  for (const ParameterDeclaration& parameter : parameters_) sum += parameter.shape.elements();
  return sum;
}

namespace {

// Random::normal for a range: values 2k and 2k + 1 come from one block, computed once.
void fill_normal(const Random& random, double deviation, int64_t first, int64_t count, float* out) {
  const int64_t end = first + count;
  int64_t index = first;
  const auto single = [&] { out[index - first] = static_cast<float>(deviation * random.normal(static_cast<uint64_t>(index))); };
  for (; index < end && index % 2 != 0; ++index) single();
  for (; index + 1 < end; index += 2) {
    const auto words = random.block(static_cast<uint64_t>(index / 2));
    const double u1 = (static_cast<double>(((static_cast<uint64_t>(words[1]) << 32) | words[0]) >> 11) + 1.0) * 0x1p-53;
    const double u2 = static_cast<double>(((static_cast<uint64_t>(words[3]) << 32) | words[2]) >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2.0 * std::log(u1));
    const double angle = 2.0 * std::numbers::pi * u2;
    out[index - first] = static_cast<float>(deviation * (radius * std::cos(angle)));
    out[index - first + 1] = static_cast<float>(deviation * (radius * std::sin(angle)));
  }
  for (; index < end; ++index) single();
}

}  // namespace

void fill_initial(const ParameterDeclaration& parameter, uint64_t seed, int64_t first, int64_t count, float* out,
                  [[maybe_unused]] int threads) {
  if (first < 0 || count < 0 || first > parameter.shape.elements() - count)
    throw ShapeError(text("initial values [", first, ", ", first, " + ", count, ") leave parameter \"", parameter.name, "\" ",
                          parameter.shape.to_string()));
  switch (parameter.initializer.kind) {
    case Initializer::Kind::zero:
      std::fill_n(out, count, 0.0f);
      return;
    case Initializer::Kind::one:
      std::fill_n(out, count, 1.0f);
      return;
    case Initializer::Kind::normal: {
      const Random random(seed, RandomStream::initialization, hash_name(parameter.name));
      constexpr int64_t piece = 1 << 16;
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > piece)
      for (int64_t done = 0; done < count; done += piece)
        fill_normal(random, parameter.initializer.deviation, first + done, std::min(piece, count - done), out + done);
      return;
    }
  }
}

}  // namespace dmuon
