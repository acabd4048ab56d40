#include "train/non_finite.h"

#include "dmuon/core/text.h"
#include "train/agreement.h"

namespace dmuon {

std::string skip_or_end(const TrainingConfiguration& training, const TrainState& state, const GradientReport& report, double loss) {
  const std::string what = text("step ", state.step, ": ",
                                report.finite ? text("the loss is not finite (", format_number(loss), ")")
                                              : text("the gradient of ", report.first_non_finite, " is not finite"),
                                ", loss ", format_number(loss));
  const bool skips = training.non_finite == "skip";
  if (skips && state.skips_in_a_row <= training.maximum_skips) return what + "; the update is skipped (training.non_finite = skip)";
  throw AgreedError(
      ExitCode::numerical,
      text(what, skips ? text("; ", state.skips_in_a_row, " steps in a row (training.maximum_skips)") : "",
           ". Nothing was updated or saved; lower the learning rate or look at the data, then resume from the last checkpoint"));
}

void end_by_message(const TrainingConfiguration& training, int64_t step, const NumericalError& error) {
  const bool skips = training.non_finite == "skip";
  throw AgreedError(ExitCode::numerical,
                    text("step ", step, ": ", error.what(),
                         skips ? " (training.non_finite = skip covers gradients; here momenta have changed already)" : ""));
}

}  // namespace dmuon
