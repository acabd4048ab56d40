// The simulation of A800 against the published table (DMuon paper, 8 to 256 GPUs), and against a recomputation that shares no
// code with it: own reading of the files, own fit, own tile counting, plain longest-processing-time assignment.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "dmuon/core/file.h"
#include "dmuon/plan/simulation.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {

const std::string configs = testing::source_directory() + "/configs/";

Simulation a800(const std::string& model, int ranks) {
  SimulationOptions options;
  options.ranks = ranks;
  options.nodes = std::max(1, ranks / 8);
  options.window_units = 1 << 20;  // the published planner batches over all layers
  options.compare_planners = false;
  return simulate(load_inventory(configs + "inventories/" + model + ".json"), load_hardware(configs + "hardware/a800.json"), options);
}

double optimizer_milliseconds(const Simulation& simulation, const std::string& method) {
  for (const MethodPrediction& m : simulation.methods)
    if (m.method == method) return 1e3 * m.optimizer_seconds();
  return -1.0;
}

// --- the recomputation ---

struct Matrix {
  double m, n;  // smaller, larger
  int count;
};

struct Model {
  std::vector<Matrix> matrices;
  double elements = 0, matrix_elements = 0;
};

Model read_model(const std::string& name) {
  Model model;
  const Json file = parse_json(read_file(configs + "inventories/" + name + ".json"), name);
  for (const Json& unit : file.at("units").as_array())
    for (const Json& tensor : unit.at("tensors").as_array()) {
      const auto count_of = [](const Json& json) { return json.find("count") == nullptr ? 1 : json.at("count").as_integer(); };
      const int count = static_cast<int>(count_of(unit) * count_of(tensor));
      double elements = count;
      for (const Json& size : tensor.at("shape").as_array()) elements *= size.as_number();
      model.elements += elements;
      if (tensor.at("role").as_string() != "matrix") continue;
      model.matrix_elements += elements;
      const double a = tensor.at("shape").as_array()[0].as_number(), b = tensor.at("shape").as_array()[1].as_number();
      model.matrices.push_back({std::min(a, b), std::max(a, b), count});
    }
  return model;
}

int tiles(double size) {
  int count = 0;
  while (128.0 * count < size) ++count;
  return count;
}
// Waves of 108 multiprocessors over the waves that the tiles would fill: a waste factor of at least 1.
double waste(int all_tiles) {
  int waves = 0;
  while (108 * waves < all_tiles) ++waves;
  return 108.0 * waves / all_tiles;
}
double triangle_waste(double m) { return waste(tiles(m) * (tiles(m) + 1) / 2); }
double square_waste(double m) { return waste(tiles(m) * tiles(m)); }
double wide_waste(double m, double n) { return waste(tiles(m) * tiles(n)); }

// Work (FLOPs with waste) of the m²n and of the m³ products of the Gram form with symmetric kernels, and of full ones.
std::pair<double, double> symmetric_work(double m, double n) {
  return {m * m * n * (2 * triangle_waste(m) + 4 * wide_waste(m, n)), m * m * m * (11 * triangle_waste(m) + 6 * square_waste(m))};
}
std::pair<double, double> full_work(double m, double n) { return {8 * m * m * n * wide_waste(m, n), 28 * m * m * m * square_waste(m)}; }

// Picoseconds per unit of work, by size.
using Speeds = std::map<double, std::pair<double, double>>;

Speeds fit(const std::string& table, std::pair<double, double> (*work)(double, double)) {
  std::map<double, std::vector<std::pair<double, double>>> times;
  const Json file = parse_json(read_file(configs + "hardware/a800.json"), "a800");
  for (const Json& row : file.at("kernels").at(table).at("times").as_array())
    times[row.at("rows").as_number()].push_back({row.at("columns").as_number(), row.at("seconds").as_number()});
  Speeds speeds;
  for (const auto& [m, rows] : times) {
    // Gradient descent would do; here Cramer's rule on the normal equations.
    double oo = 0, oi = 0, ii = 0, ot = 0, it = 0;
    for (const auto& [n, t] : rows) {
      const auto [o, i] = work(m, n);
      oo += o * o, oi += o * i, ii += i * i, ot += o * t, it += i * t;
    }
    speeds[m] = {(ot * ii - it * oi) / (oo * ii - oi * oi), (it * oo - ot * oi) / (oo * ii - oi * oi)};
  }
  return speeds;
}

// Rates are interpolated, so inverse speeds harmonically.
std::pair<double, double> at(const Speeds& speeds, double m) {
  auto above = speeds.lower_bound(m);
  if (above == speeds.end()) return speeds.rbegin()->second;
  if (above == speeds.begin()) return above->second;
  const auto below = std::prev(above);
  const double w = std::log2(m / below->first) / std::log2(above->first / below->first);
  const auto mix = [w](double a, double b) { return 1.0 / ((1.0 - w) / a + w / b); };
  return {mix(below->second.first, above->second.first), mix(below->second.second, above->second.second)};
}

double owner_update(const Speeds& speeds, const Matrix& matrix) {
  const auto [outer, inner] = symmetric_work(matrix.m, matrix.n);
  const auto [per_outer, per_inner] = at(speeds, matrix.m);
  return std::max(outer * per_outer + inner * per_inner, 28e-5) + 15 * 4 * matrix.m * matrix.n / 2e12;
}

// Longest processing time first, one matrix at a time.
double assigned(const Model& model, const Speeds& speeds, int ranks) {
  std::vector<double> costs, loads(static_cast<size_t>(ranks), 0.0);
  for (const Matrix& matrix : model.matrices) costs.insert(costs.end(), static_cast<size_t>(matrix.count), owner_update(speeds, matrix));
  std::sort(costs.begin(), costs.end(), std::greater<>());
  for (double cost : costs) *std::min_element(loads.begin(), loads.end()) += cost;
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace

TEST_CASE("gather equals the recomputation; owner lies between its bound and the plain assignment") {
  const Speeds symmetric = fit("symmetric", symmetric_work), full = fit("full", full_work);
  for (const std::string name : {"wall-oss-0.5", "qwen2.5-7b", "pi0", "wall-wm"})
    for (int ranks : {8, 64, 256}) {
      INFO(name << " on " << ranks);
      const Model model = read_model(name);
      const int nodes = ranks / 8;
      const double rest = (model.elements - model.matrix_elements) / 8 * 20 * 4 / 2e12;
      double gather = rest + model.matrix_elements / ranks * 15 * 4 / 2e12, largest = 0.0, sum = 0.0;
      for (const Matrix& matrix : model.matrices) {
        const auto [per_outer, per_inner] = at(full, matrix.m);
        const double direct = 20 * matrix.m * matrix.m * matrix.n * wide_waste(matrix.m, matrix.n) * per_outer +
                              10 * std::pow(matrix.m, 3) * square_waste(matrix.m) * per_inner;
        const double link = nodes == 1 ? 74e9 : 25e9;
        const double ring = 8.4e-6 + (ranks - nodes) * 3.4e-6 + (nodes - 1) * 14e-6 + 2 * matrix.m * matrix.n * (ranks - 1) / ranks / link;
        gather += matrix.count * (std::max(direct, 25e-5) + ring);
        largest = std::max(largest, owner_update(symmetric, matrix));
        sum += matrix.count * owner_update(symmetric, matrix);
      }
      const Simulation simulation = a800(name, ranks);
      CHECK(optimizer_milliseconds(simulation, "gather") == Approx(1e3 * gather).epsilon(1e-6));
      const double owner = 1e-3 * optimizer_milliseconds(simulation, "owner") - rest;
      CHECK(owner <= assigned(model, symmetric, ranks) * (1.0 + 1e-9));  // batches and search only improve on it
      CHECK(owner >= largest * (1.0 - 1e-9));
      CHECK(owner <= std::max(largest, sum / ranks) * 1.5);
    }
}

TEST_CASE("optimizer times of the owner are within 25 % of the published ones where shapes are published") {
  CHECK(optimizer_milliseconds(a800("wall-oss-0.5", 256), "owner") == Approx(18.0).epsilon(0.25));
  CHECK(optimizer_milliseconds(a800("qwen2.5-7b", 256), "owner") == Approx(22.0).epsilon(0.25));
  const Simulation eight = a800("wall-oss-0.5", 8);
  CHECK(optimizer_milliseconds(eight, "gather") / optimizer_milliseconds(eight, "owner") == Approx(15.12).epsilon(0.25));
}

TEST_CASE("gather and speed-ups are near the published ones where shapes are published") {
  for (const auto& [name, gather, speedup] : {std::tuple{"wall-oss-0.5", 1977.0, 109.44}, {"qwen2.5-7b", 3604.0, 163.82}}) {
    const Simulation simulation = a800(name, 256);
    CHECK(optimizer_milliseconds(simulation, "gather") == Approx(gather).epsilon(0.25));
    CHECK(optimizer_milliseconds(simulation, "gather") / optimizer_milliseconds(simulation, "owner") == Approx(speedup).epsilon(0.25));
  }
}

// The optimizer rows of the two tables, so that the document cannot fall behind the code.
TEST_CASE("docs/scaling.md shows what the simulation gives") {
  std::istringstream document(read_file(testing::source_directory() + "/docs/scaling.md"));
  std::map<std::string, std::vector<double>> rows;  // "model method" -> 8 to 256 GPUs; the first row of a name is the optimizer's
  std::string model;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("| Wall-OSS-0.5, GPUs", 0) == 0) model = "wall-oss-0.5";
    if (line.rfind("| Qwen2.5-7B, GPUs", 0) == 0) model = "qwen2.5-7b";
    if (line.empty()) model.clear();
    for (const auto& [label, method] : {std::pair{"| optimizer: AdamW |", "adamw"}, {"| gather |", "gather"}, {"| owner |", "owner"}}) {
      std::vector<double>& row = rows[model + " " + method];
      if (model.empty() || line.rfind(label, 0) != 0 || !row.empty()) continue;
      std::istringstream cells(line.substr(std::string(label).size()));
      double value = 0.0;
      for (char bar = 0; cells >> value; cells >> bar) row.push_back(value);
    }
  }
  for (const std::string name : {"wall-oss-0.5", "qwen2.5-7b"})
    for (size_t i = 0; i < 6; ++i) {
      const Simulation simulation = a800(name, 8 << i);
      for (const std::string method : {"adamw", "gather", "owner"}) {
        INFO(name << " " << method << " on " << (8 << i));
        REQUIRE(rows[name + " " + method].size() == 6);
        CHECK(rows[name + " " + method][i] == Approx(optimizer_milliseconds(simulation, method)).epsilon(0.01));
      }
    }
}
