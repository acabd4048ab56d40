#include "dmuon/newton_schulz/coefficients.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

using Row = std::array<double, 3>;

std::vector<Row> repeat(const Row& row, int times) { return std::vector<Row>(static_cast<size_t>(times), row); }

// The last three lists are the restarts of the Gram form in float32, float16 and bfloat16. R = X X^T is a polynomial of
// its own rounded start, so the rounding of a direction whose singular value is (nearly) zero grows by a^2 per iteration
// until R is recomputed. docs/newton_schulz.md has the measurements and the rule by which the entries were chosen.
std::vector<CoefficientSet> make_sets() {
  const Row keller{3.4445, -4.7750, 2.0315};  // K. Jordan, Muon (2024)
  const Row cubic_limit{2.0, -1.5, 0.5};      // the classic quintic with f(1) = 1, f'(1) = f''(1) = 0

  std::vector<Row> deepseek = repeat(keller, 8);  // Emerging-Optimizers "deepseekv4"
  deepseek.insert(deepseek.end(), 2, cubic_limit);

  std::vector<CoefficientSet> sets;
  sets.push_back({"keller5", repeat(keller, 5), 5, {}, {2}, {2, 3}});
  // YouJiacheng's five-step set; Emerging-Optimizers "quintic".
  sets.push_back({"you5",
                  {{4.0848, -6.8946, 2.9270},
                   {3.9505, -6.3029, 2.6377},
                   {3.7418, -5.5913, 2.3037},
                   {2.8769, -3.1427, 1.2046},
                   {2.8366, -3.0525, 1.2012}},
                  5,
                  {2},
                  {2},
                  {2, 3}});
  // Polar Express (Amsel et al., 2025), rows 0-4 divided by a safety factor s: (a/s, b/s^3, c/s^5); s = 1.05 as in
  // Dao-AILab's Gram Newton-Schulz and in DMuon.
  sets.push_back({"polar_express_105",
                  {{7.892582874424408, -20.38301394587957, 13.555306149406924},
                   {3.911484868135431, -2.5464635929060884, 0.4268988319673074},
                   {3.760657955697423, -2.512819018216563, 0.4323647349070073},
                   {3.160399673686287, -2.149649518898498, 0.3996366907664389},
                   {2.1910971618617303, -1.441662010214663, 0.328146487623155}},
                  5,
                  {2},
                  {2},
                  {2, 3}});
  // The same rows with s = 1.01 on all five.
  sets.push_back({"polar_express_101",
                  {{8.205160414005574, -22.90193498705605, 16.460724910180314},
                   {4.066395159942775, -2.8611540867551426, 0.5183995226694741},
                   {3.9095949044379155, -2.823351735039516, 0.5250369769390025},
                   {3.2855640171986153, -2.415301959635945, 0.48529406552790866},
                   {2.277873287083977, -1.619821765265441, 0.39848078704168355}},
                  5,
                  {2},
                  {2},
                  {2, 3}});
  // The table baked into dion and modded-nanogpt, for an input divided by norm * 1.02 + 1e-6.
  sets.push_back({"polar_express_dion",
                  {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                   {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                   {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                   {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                   {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
                  5,
                  {2},
                  {2},
                  {2, 3}});
  // Emerging-Optimizers "polar_express": eight rows, of which five are used unless more are asked for.
  sets.push_back({"emerging_polar_express5",
                  {{8.2051, -22.9019, 16.4607},
                   {4.0664, -2.8612, 0.5184},
                   {3.9096, -2.8234, 0.5250},
                   {3.2856, -2.4153, 0.4853},
                   {2.2779, -1.6198, 0.3985},
                   {1.8726, -1.2307, 0.3585},
                   {1.8564, -1.2132, 0.3568},
                   {1.8750, -1.2500, 0.3750}},
                  5,
                  {2},
                  {2},
                  {2, 3}});
  // CANS (Grishina et al., 2025) as in Emerging-Optimizers.
  sets.push_back({"cans5",
                  {{8.4703, -25.1081, 18.6293},
                   {4.1828, -3.1087, 0.5806},
                   {3.9619, -2.9541, 0.5630},
                   {3.2866, -2.4647, 0.5074},
                   {2.2737, -1.6447, 0.4162}},
                  5,
                  {1, 2},
                  {1, 2},
                  {1, 2}});
  sets.push_back({"deepseek10", std::move(deepseek), 10, {5}, {3, 6}, {2, 4, 6, 8}});
  // Emerging-Optimizers "cubic".
  sets.push_back({"cubic5",
                  {{3.3656576, -3.3420992, 0},
                   {2.5744352, -1.4957376, 0},
                   {2.5368962, -1.431257, 0},
                   {2.4418906, -1.276404, 0},
                   {2.2230472, -0.963065, 0}},
                  5,
                  {1},
                  {1},
                  {1, 2}});
  // modded-nanogpt's baseline of the fixed-architecture track.
  sets.push_back({"track3_12", repeat(cubic_limit, 12), 12, {5}, {4, 8}, {4, 8}});
  for (CoefficientSet& set : sets) {
    set.cubic = true;
    for (const Row& row : set.rows) set.cubic = set.cubic && row[2] == 0.0;
  }
  return sets;
}

const std::vector<CoefficientSet>& sets() {
  static const std::vector<CoefficientSet> all = make_sets();
  return all;
}

}  // namespace

const CoefficientSet& coefficient_set(std::string_view name) {
  for (const CoefficientSet& set : sets())
    if (set.name == name) return set;
  const std::vector<std::string> names = coefficient_set_names();
  const std::string close = nearest(name, names);
  throw ConfigError(text("no Newton-Schulz coefficient set \"", name, "\"", close.empty() ? "" : text("; did you mean \"", close, "\"?"),
                         " There are ", join(names, ", ")));
}

std::vector<std::string> coefficient_set_names() {
  std::vector<std::string> names;
  for (const CoefficientSet& set : sets()) names.push_back(set.name);
  return names;
}

double newton_schulz_scalar_map(const CoefficientSet& set, double x, int iterations) {
  const int count = iterations > 0 ? iterations : set.iterations;
  for (int i = 0; i < count; ++i) {
    const Row& row = set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)];
    x = x * (row[0] + x * x * (row[1] + x * x * row[2]));
  }
  return x;
}

}  // namespace dmuon
