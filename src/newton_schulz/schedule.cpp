#include "newton_schulz/schedule.h"

#include <algorithm>
#include <sstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// `automatic` picks the Gram form from this ratio of long to short side on, for every set and instruction set: by FLOPs the
// forms tie at 1, measured they cross between 1 and 1.25 (docs/newton_schulz.md).
constexpr double gram_from_ratio = 1.25;

// Past the rows of its set the last row repeats; a restart every `tail_spacing` of those keeps the rounding of R, which
// grows by a^2 per iteration in directions whose singular value is zero, from spreading.
constexpr int tail_spacing = 3;

std::vector<int> resolved_restarts(const NewtonSchulzSpecification& specification, const CoefficientSet& set, int iterations) {
  if (specification.disable_restarts) return {};
  if (!specification.restarts.empty()) return specification.restarts;
  std::vector<int> restarts = set.restarts(specification.dtype);
  for (int i = set.iterations; i < iterations; i += tail_spacing) restarts.push_back(i);
  std::erase_if(restarts, [&](int restart) { return restart >= iterations; });
  return restarts;
}

int resolved_iterations(const NewtonSchulzSpecification& specification, const CoefficientSet& set) {
  return specification.iterations > 0 ? specification.iterations : set.iterations;
}

}  // namespace

NewtonSchulzSchedule resolve(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns) {
  const CoefficientSet& set = coefficient_set(specification.coefficients);
  NewtonSchulzSchedule schedule;
  const int iterations = resolved_iterations(specification, set);
  for (int i = 0; i < iterations; ++i) schedule.rows.push_back(set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)]);
  schedule.tall = rows > columns;
  schedule.short_side = std::min(rows, columns);
  schedule.long_side = std::max(rows, columns);
  schedule.gram = specification.form == IterationForm::gram;
  if (specification.form == IterationForm::automatic) {
    schedule.gram = static_cast<double>(schedule.long_side) >= gram_from_ratio * static_cast<double>(schedule.short_side);
    for (const MeasuredForm& measured : specification.measured_forms)
      if (measured.rows == rows && measured.columns == columns) schedule.gram = measured.form == IterationForm::gram;
  }
  schedule.segments = {0};
  if (schedule.gram)
    for (int restart : resolved_restarts(specification, set, iterations)) schedule.segments.push_back(restart);
  return schedule;
}

NewtonSchulzSchedule direct_form(NewtonSchulzSchedule schedule) {
  schedule.gram = false;
  schedule.segments = {0};
  return schedule;
}

// Counts the products of engine.cpp, line by line.
double flops(const NewtonSchulzSchedule& schedule) {
  const double n = static_cast<double>(schedule.short_side);
  const double m = static_cast<double>(schedule.long_side);
  const double gram_product = m * n * n;   // X X^T, lower triangle
  const double small_product = n * n * n;  // n x n by n x n, lower triangle
  const double apply = 2.0 * m * n * n;    // Q X
  double total = 0.0;
  for (size_t segment = 0; segment < schedule.segments.size(); ++segment) {
    const int first = schedule.segments[segment], end = schedule.segment_end(segment);
    for (int i = first; i < end; ++i) {
      const bool quintic = schedule.rows[static_cast<size_t>(i)][2] != 0.0;
      if (!schedule.gram) {
        total += gram_product + (quintic ? small_product : 0.0) + apply;
        continue;
      }
      if (i == first) total += gram_product;
      if (quintic) total += small_product;            // P
      if (i > first) total += small_product;          // Q P
      if (i + 1 < end) total += 2.0 * small_product;  // R P, (R P) P
    }
    if (schedule.gram) total += apply;
  }
  return total;
}

void check(const NewtonSchulzSpecification& specification) {
  const CoefficientSet& set = coefficient_set(specification.coefficients);
  if (specification.iterations < 0 || specification.iterations > 99)
    throw ConfigError(text("Newton-Schulz iterations must lie in [0, 99] (0: the ", set.iterations, " of ", set.name, "), found ",
                           specification.iterations));
  const int iterations = resolved_iterations(specification, set);
  int previous = 0;
  for (int restart : specification.restarts) {
    if (restart <= previous || restart >= iterations)
      throw ConfigError(text("Newton-Schulz restarts must ascend inside [1, ", iterations - 1, "], found ", restart, " after ", previous));
    previous = restart;
  }
  if (!(specification.epsilon >= 0.0) || specification.epsilon > 1.0)
    throw ConfigError(text("Newton-Schulz epsilon must lie in [0, 1], found ", specification.epsilon));
  if (!(specification.safety >= 1.0) || specification.safety > 2.0)
    throw ConfigError(text("Newton-Schulz safety must lie in [1, 2], found ", specification.safety));
  if (specification.dtype != DType::float32 && specification.dtype != DType::float16)
    throw ConfigError(text("Newton-Schulz dtype must be float32 or float16, found ", name_of(specification.dtype)));
  if (specification.dtype == DType::float16 && specification.normalization != Normalization::frobenius)
    throw ConfigError("Newton-Schulz in float16 divides by the Frobenius norm; the spectral norm is taken in float32: choose one");
  for (const MeasuredForm& measured : specification.measured_forms)
    if (measured.form == IterationForm::automatic || measured.rows <= 0 || measured.columns <= 0)
      throw ConfigError(text("the measured Newton-Schulz form of ", measured.rows, "x", measured.columns, " must be direct or gram, found ",
                             name_of(measured.form)));
}

Json NewtonSchulzSpecification::description() const {
  const CoefficientSet& set = coefficient_set(coefficients);
  const int count = resolved_iterations(*this, set);
  Json restart_list = Json::array();
  for (int restart : resolved_restarts(*this, set, count)) restart_list.push_back(restart);
  Json result = Json::object();
  result.set("coefficients", coefficients);
  result.set("iterations", count);
  result.set("iteration_form", name_of(form));
  result.set("restarts", std::move(restart_list));
  result.set("epsilon_mode", name_of(epsilon_mode));
  result.set("normalization_epsilon", epsilon);
  result.set("normalization_safety", safety);
  if (normalization != Normalization::frobenius) result.set("normalization", name_of(normalization));
  if (!measured_forms.empty()) result.set("measured_forms", to_json(measured_forms));
  result.set("newton_schulz_dtype", name_of(dtype));
  return result;
}

Json to_json(std::span<const MeasuredForm> forms) {
  Json result = Json::object();
  for (const MeasuredForm& each : forms) result.set(text(each.rows, "x", each.columns), name_of(each.form));
  return result;
}

std::vector<MeasuredForm> measured_forms_from(const Json& json) {
  std::vector<MeasuredForm> forms;
  for (const auto& [shape, form] : json.as_object()) {
    MeasuredForm each;
    char by = 0;
    std::istringstream in(shape);
    if (!(in >> each.rows >> by >> each.columns) || by != 'x' || in.peek() != std::istringstream::traits_type::eof())
      throw ConfigError(text("measured Newton-Schulz forms: expected ROWSxCOLUMNS, found \"", shape, "\""));
    each.form = iteration_form_from_name(form.as_string());
    forms.push_back(each);
  }
  NewtonSchulzSpecification specification;
  specification.measured_forms = forms;
  check(specification);
  return forms;
}

double newton_schulz_flops(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns) {
  const NewtonSchulzSchedule schedule = resolve(specification, rows, columns);
  double total = flops(schedule);
  if (specification.normalization == Normalization::spectral) {
    const double n = static_cast<double>(schedule.short_side);
    total += static_cast<double>(schedule.long_side) * n * n + 2.0 * power_iteration_rounds * n * n;
  }
  return total;
}

IterationForm newton_schulz_form(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns) {
  return resolve(specification, rows, columns).gram ? IterationForm::gram : IterationForm::direct;
}

std::string_view name_of(IterationForm form) {
  switch (form) {
    case IterationForm::automatic:
      return "auto";
    case IterationForm::direct:
      return "direct";
    case IterationForm::gram:
      return "gram";
  }
  return "";
}

IterationForm iteration_form_from_name(std::string_view name) {
  for (IterationForm form : {IterationForm::automatic, IterationForm::direct, IterationForm::gram})
    if (name_of(form) == name) return form;
  throw ConfigError(text("no Newton-Schulz form \"", name, "\"; there are auto, direct, gram"));
}

std::string_view name_of(Normalization normalization) { return normalization == Normalization::spectral ? "spectral" : "frobenius"; }

Normalization normalization_from_name(std::string_view name) {
  for (Normalization normalization : {Normalization::frobenius, Normalization::spectral})
    if (name_of(normalization) == name) return normalization;
  throw ConfigError(text("no Newton-Schulz normalization \"", name, "\"; there are frobenius, spectral"));
}

std::string_view name_of(EpsilonMode mode) {
  switch (mode) {
    case EpsilonMode::add:
      return "add";
    case EpsilonMode::clamp:
      return "clamp";
    case EpsilonMode::scaled:
      return "scaled";
  }
  return "";
}

EpsilonMode epsilon_mode_from_name(std::string_view name) {
  for (EpsilonMode mode : {EpsilonMode::add, EpsilonMode::clamp, EpsilonMode::scaled})
    if (name_of(mode) == name) return mode;
  throw ConfigError(text("no epsilon mode \"", name, "\"; there are add, clamp, scaled"));
}

}  // namespace dmuon
