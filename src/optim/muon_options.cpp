// Enumerations, presets and the momentum schedule of Muon.
#include <algorithm>
#include <cmath>

#include "dmuon/optim/muon.h"
#include "optim/rule_support.h"

namespace dmuon {

std::string_view name_of(MomentumForm form) {
  switch (form) {
    case MomentumForm::lerp:
      return "lerp";
    case MomentumForm::sum:
      return "sum";
  }
  return "";
}

MomentumForm momentum_form_from_name(std::string_view name) {
  return enum_from_name("momentum form", name, {MomentumForm::lerp, MomentumForm::sum});
}

std::string_view name_of(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::original:
      return "original";
    case ScaleMode::match_rms:
      return "match_rms";
    case ScaleMode::spectral:
      return "spectral";
    case ScaleMode::spectral_ratio:
      return "spectral_ratio";
    case ScaleMode::none:
      return "none";
  }
  return "";
}

ScaleMode scale_mode_from_name(std::string_view name) {
  return enum_from_name("update scale", name,
                        {ScaleMode::original, ScaleMode::match_rms, ScaleMode::spectral, ScaleMode::spectral_ratio, ScaleMode::none});
}

double muon_scale(ScaleMode mode, int64_t rows, int64_t columns) {
  const double r = static_cast<double>(rows), c = static_cast<double>(columns);
  switch (mode) {
    case ScaleMode::original:
      return std::sqrt(std::max(1.0, r / c));
    case ScaleMode::match_rms:
      return 0.2 * std::sqrt(std::max(r, c));
    case ScaleMode::spectral:
      return std::sqrt(std::max(r, c));
    case ScaleMode::spectral_ratio:
      return std::sqrt(r / c);
    case ScaleMode::none:
      return 1.0;
  }
  return 1.0;
}

double muon_momentum(const OrthogonalMomentumOptions& options, int64_t step) {
  if (options.momentum_warmup_steps <= 0) return options.momentum;
  const double part = std::clamp(static_cast<double>(step - 1) / static_cast<double>(options.momentum_warmup_steps), 0.0, 1.0);
  return (1.0 - part) * options.momentum_start + part * options.momentum;
}

std::vector<std::string> muon_options_names() { return {"keller", "torch", "moonlight", "dion", "emerging", "dmuon", "custom"}; }

MuonOptions muon_options(std::string_view preset) {
  MuonOptions options;
  NewtonSchulzSpecification& newton_schulz = options.newton_schulz;
  const auto set = [&](MomentumForm form, bool nesterov, const char* coefficients, EpsilonMode mode, double epsilon, double safety,
                       ScaleMode scale, double weight_decay) {
    options.momentum_form = form;
    options.nesterov = nesterov;
    options.momentum = 0.95;
    options.scale = scale;
    options.scale_factor = 1.0;
    options.weight_decay = weight_decay;
    newton_schulz.coefficients = coefficients;
    newton_schulz.iterations = 5;
    newton_schulz.form = IterationForm::automatic;
    newton_schulz.epsilon_mode = mode;
    newton_schulz.epsilon = epsilon;
    newton_schulz.safety = safety;
  };
  using enum MomentumForm;
  if (preset == "keller") {  // KellerJordan/Muon
    set(lerp, true, "keller5", EpsilonMode::add, 1e-7, 1.0, ScaleMode::original, 0.0);
  } else if (preset == "torch") {  // torch.optim.Muon, its defaults
    set(lerp, true, "keller5", EpsilonMode::clamp, 1e-7, 1.0, ScaleMode::original, 0.1);
  } else if (preset == "moonlight") {  // MoonshotAI/Moonlight
    set(sum, true, "keller5", EpsilonMode::add, 1e-7, 1.0, ScaleMode::match_rms, 0.1);
  } else if (preset == "dion") {  // microsoft/dion, Muon
    set(sum, false, "polar_express_dion", EpsilonMode::scaled, 1e-6, 1.02, ScaleMode::spectral_ratio, 0.01);
  } else if (preset == "emerging") {  // NVIDIA-NeMo/Emerging-Optimizers, Muon
    set(lerp, false, "you5", EpsilonMode::clamp, 1e-15, 1.0, ScaleMode::spectral, 0.01);
  } else if (preset == "dmuon") {  // arXiv:2606.27153
    set(sum, true, "polar_express_105", EpsilonMode::add, 1e-7, 1.0, ScaleMode::match_rms, 0.0);
  } else if (preset == "custom") {
    set(lerp, true, "keller5", EpsilonMode::clamp, 1e-15, 1.0, ScaleMode::original, 0.0);
  } else {
    const std::string close = nearest(preset, muon_options_names());
    throw ConfigError(text("no Muon preset \"", preset, "\"", close.empty() ? std::string() : text("; did you mean \"", close, "\"?"),
                           " There are ", join(muon_options_names(), ", ")));
  }
  return options;
}

}  // namespace dmuon
