#include "optim/muon_tuning.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/device.h"

namespace dmuon {
namespace {

std::string key_of(const Shape& shape) { return text(shape[0], "x", shape[1]); }

SymmetricChoice symmetric_choice_from(const Json& json) {
  SymmetricChoice choice;
  choice.shape.n = json.at("n").as_integer(), choice.shape.k = json.at("k").as_integer();
  choice.shape.a_along_k = json.at("a_along_k").as_bool(), choice.shape.b_along_k = json.at("b_along_k").as_bool();
  choice.shape.count = json.at("count").as_integer();
  choice.form = json.at("form").as_string();
  choice.changes_bits = json.at("changes_bits").as_bool();
  if (choice.shape.n < 1 || choice.shape.k < 1 || choice.shape.count < 1 || choice.form.empty() || choice.form.size() > 64)
    throw ConfigError(text("Newton-Schulz choices: a symmetric product ", json.dump()));
  return choice;
}

}  // namespace

Json symmetric_json(std::span<const SymmetricChoice> choices) {
  Json all = Json::array();
  for (const SymmetricChoice& choice : choices) {
    Json one = Json::object();
    one.set("n", choice.shape.n);
    one.set("k", choice.shape.k);
    one.set("a_along_k", choice.shape.a_along_k);
    one.set("b_along_k", choice.shape.b_along_k);
    one.set("count", choice.shape.count);
    one.set("form", choice.form);
    one.set("changes_bits", choice.changes_bits);
    all.push_back(std::move(one));
  }
  return all;
}

void use_symmetric_choices(Backend& backend, std::span<const SymmetricChoice> choices) {
  DeviceUpdates* device = device_updates(backend);
  if (!device || backend.shape_only()) return;
  for (const SymmetricChoice& choice : choices) device->use_symmetric_form(choice.shape, choice.form);
}

ShapeCount muon_matrices(std::string_view rule, std::string_view parameter, const Shape& shape, bool per_head) {
  if (shape.elements() > 0) {
    if (shape.rank() == 2) return {shape, 1};
    if (shape.rank() == 4) return {Shape{shape[0], shape[1] * shape[2] * shape[3]}, 1};
    if (shape.rank() == 3 && per_head) return {Shape{shape[1], shape[2]}, shape[0]};
  }
  throw ShapeError(text(rule, ": ", parameter, " has shape ", shape.to_string(), "; ", rule,
                        " takes matrices [out, in] and convolution weights [out, in, k, k]. Route it to another rule, such as adamw."));
}

const NewtonSchulzPlacement* MuonTuning::placement(const Shape& shape) const {
  for (const Placed& each : placements)
    if (each.shape == shape) return &each.placement;
  return nullptr;
}

Json MuonTuning::to_json() const {
  Json table = Json::object();
  for (const Placed& each : placements) {
    Json placement = Json::object();
    placement.set("batch", each.placement.batch);
    placement.set("queues", each.placement.queues);
    table.set(key_of(each.shape), std::move(placement));
  }
  Json result = Json::object();
  result.set("placements", std::move(table));
  if (!forms.empty()) result.set("measured_forms", dmuon::to_json(forms));
  if (!symmetric.empty()) result.set("symmetric_products", symmetric_json(symmetric));
  return result;
}

MuonTuning MuonTuning::from_json(const Json& json) {
  MuonTuning tuning;
  for (const auto& [key, value] : json.as_object()) {
    if (key == "measured_forms") {
      tuning.forms = measured_forms_from(value);
      continue;
    }
    if (key == "symmetric_products") {
      for (const Json& choice : value.as_array()) tuning.symmetric.push_back(symmetric_choice_from(choice));
      continue;
    }
    if (key != "placements") throw ConfigError(text("Newton-Schulz choices: unknown entry \"", key, "\""));
    for (const auto& [name, placement] : value.as_object()) {
      // The same notation as the forms: read by the same code.
      Json one = Json::object();
      one.set(name, name_of(IterationForm::direct));
      const MeasuredForm shape = measured_forms_from(one).front();
      const int64_t batch = placement.at("batch").as_integer(), queues = placement.at("queues").as_integer();
      if (batch < 1 || queues < 1 || queues > batch || queues > 65536)
        throw ConfigError(text("Newton-Schulz choices: ", name, " in batches of ", batch, " on ", queues, " queues"));
      tuning.placements.push_back({Shape{shape.rows, shape.columns}, {batch, static_cast<int>(queues)}});
    }
  }
  return tuning;
}

MuonTuning tune_muon(Backend& backend, std::string_view rule, const OrthogonalMomentumOptions& options, std::span<const ShapeCount> shapes,
                     MeasurementCache* cache, const MuonTuning* adopted) {
  MuonTuning tuning;
  tuning.forms = options.newton_schulz.measured_forms;
  NewtonSchulzTuner tuner(backend, cache);
  NewtonSchulzSpecification specification = options.newton_schulz;
  // Several given shapes may be one matrix shape; the largest count decides.
  std::vector<ShapeCount> matrices;
  for (const ShapeCount& each : shapes) {
    const auto [shape, parts] = muon_matrices(rule, "a tensor", each.shape, options.per_head);
    const auto found = std::find_if(matrices.begin(), matrices.end(), [&](const ShapeCount& other) { return other.shape == shape; });
    if (found == matrices.end())
      matrices.push_back({shape, parts * each.count});
    else
      found->count = std::max(found->count, parts * each.count);
  }
  if (specification.dtype == DType::float16) {
    for (const auto& [shape, count] : matrices) {
      // A batch is never larger than the fixed one: a dry run has counted that.
      const int64_t most =
          newton_schulz_device_batch(specification, shape[0], shape[1], count, device_workspace_factor * options.workspace_bytes);
      const std::vector<SymmetricChoice> given = adopted ? adopted->symmetric : tuning.symmetric;
      const bool changing_bits = options.tune_numerics && !adopted;
      // The forms that change bits first, and for the largest batch; small ones then keep them.
      std::vector<SymmetricChoice> chosen = tuner.choose_symmetric_forms(specification, shape[0], shape[1], most, changing_bits, given);
      const int64_t batch = tuner.device_batch(specification, shape[0], shape[1], count, most, chosen);
      if (batch != most) chosen = tuner.choose_symmetric_forms(specification, shape[0], shape[1], batch, false, chosen);
      use_symmetric_choices(backend, chosen);
      tuning.placements.push_back({shape, {batch, static_cast<int>(batch)}});
      tuning.symmetric.insert(tuning.symmetric.end(), chosen.begin(), chosen.end());
    }
    return tuning;
  }
  // No placement may need more memory than the hungriest fixed one: a dry run has counted that.
  const int threads = backend.information().threads;
  std::vector<NewtonSchulzPlacement> fixed;
  int64_t most_bytes = 0;
  for (const auto& [shape, count] : matrices) {
    fixed.push_back(
        newton_schulz_placement(options.newton_schulz, shape[0], shape[1], DType::float32, count, threads, options.workspace_bytes));
    most_bytes = std::max(most_bytes, newton_schulz_bytes(options.newton_schulz, shape[0], shape[1], DType::float32, fixed.back()));
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Shape& shape = matrices[i].shape;
    const auto known = [&](const MeasuredForm& form) { return form.rows == shape[0] && form.columns == shape[1]; };
    const bool choose = options.tune_numerics && specification.form == IterationForm::automatic;
    if (choose && std::none_of(tuning.forms.begin(), tuning.forms.end(), known)) {
      NewtonSchulzSpecification unmeasured = options.newton_schulz;
      unmeasured.measured_forms.clear();
      tuning.forms.push_back({shape[0], shape[1], tuner.form(unmeasured, shape[0], shape[1])});
    }
    // What the other shapes have chosen does not concern this one.
    specification.measured_forms.clear();
    for (const MeasuredForm& form : tuning.forms)
      if (known(form)) specification.measured_forms = {form};
    tuning.placements.push_back({shape, tuner.placement(specification, shape[0], shape[1], matrices[i].count, fixed[i], most_bytes)});
  }
  return tuning;
}

}  // namespace dmuon
