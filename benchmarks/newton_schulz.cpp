// The Newton-Schulz engine against its naive twin: the direct form on full matrix products of the library (dnnl_sgemm where
// oneDNN is built in), one matrix after another.
#include "dmuon/newton_schulz/newton_schulz.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "device_update.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/muon.h"
#include "fma_peak.h"
#include "options.h"
#include "support.h"

namespace dmuon::bench {
namespace {

// X <- a X + b (X X^T) X + c (X X^T)^2 X by three full products an iteration; `a` goes to the diagonal of the factor, so
// that no pass over X is spent on it. Leaves its input as it is.
class NaiveTwin {
 public:
  NaiveTwin(Backend& backend, int64_t rows, int64_t columns)
      : backend_(backend),
        tall_(rows > columns),
        side_(std::min(rows, columns)),
        gram_(random_tensor(backend, {side_, side_})),
        factor_(random_tensor(backend, {side_, side_})) {
    for (Tensor& each : x_) each = random_tensor(backend, {rows, columns});
  }

  // The result stays valid until the next call.
  const Tensor& run(const CoefficientSet& set, const Tensor& input) {
    Stream& stream = backend_.compute_stream();
    Tensor current = input;
    double scale = 1.0 / norm(input);
    for (int i = 0; i < set.iterations; ++i, scale = 1.0) {
      const auto& [a, b, c] = set.rows[static_cast<size_t>(i)];
      Multiply gram;
      gram.a = gram.b = current, gram.c = gram_, gram.alpha = scale * scale;
      (tall_ ? gram.transpose_a : gram.transpose_b) = true;
      backend_.matrix().multiply(stream, gram);
      backend_.copy(stream, gram_, factor_);
      Multiply square;
      square.a = square.b = gram_, square.c = factor_, square.alpha = c, square.beta = b;
      backend_.matrix().multiply(stream, square);
      for (int64_t d = 0; d < side_; ++d) factor_.data<float>()[d * (side_ + 1)] += static_cast<float>(a);
      Multiply apply;
      apply.a = tall_ ? current : factor_, apply.b = tall_ ? factor_ : current, apply.c = x_[i % 2], apply.alpha = scale;
      backend_.matrix().multiply(stream, apply);
      current = x_[i % 2];
    }
    return x_[(set.iterations + 1) % 2];
  }

 private:
  double norm(const Tensor& x) {
    const Tensor sums = backend_.allocate({(x.elements() + 16383) / 16384}, DType::float64, MemoryCategory::workspace, "norm");
    backend_.optimizer().square_sums(backend_.compute_stream(), {x, sums});
    double total = 0;
    for (double sum : to_doubles(backend_, sums)) total += sum;
    return std::sqrt(total);
  }

  Backend& backend_;
  bool tall_;
  int64_t side_;
  Tensor gram_, factor_, x_[2];
};

double seconds_now(bool thread_time) {
  timespec now{};
  clock_gettime(thread_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The functions take turns, after a warm-up of each; medians over turns of seconds and of first / other.
struct Turns {
  std::vector<double> seconds;  // of each function
  std::vector<Spread> ratios;   // seconds of each function / seconds of the first
};
Turns take_turns(const Arguments& arguments, const std::vector<std::function<void()>>& functions) {
  const bool thread_time = arguments.threads == 1;
  std::vector<int> repetitions;
  for (const auto& function : functions) {
    function();
    const double start = seconds_now(thread_time);
    function();
    repetitions.push_back(std::clamp(static_cast<int>(0.02 / std::max(seconds_now(thread_time) - start, 1e-6)), 1, 1000));
  }
  std::vector<std::vector<double>> times(functions.size()), ratios(functions.size());
  for (int turn = 0; turn < arguments.pairs; ++turn)
    for (size_t f = 0; f < functions.size(); ++f) {
      const double start = seconds_now(thread_time);
      for (int i = 0; i < repetitions[f]; ++i) functions[f]();
      times[f].push_back((seconds_now(thread_time) - start) / repetitions[f]);
      ratios[f].push_back(times[f].back() / times[0].back());
    }
  Turns result;
  for (size_t f = 0; f < functions.size(); ++f) {
    result.seconds.push_back(spread_of(times[f]).median);
    result.ratios.push_back(spread_of(ratios[f]));
  }
  return result;
}

struct Case {
  int64_t rows = 0, columns = 0, batch = 1;
  std::vector<int> restarts = {};  // of the Gram form; empty: those of the set's table
};

class Comparisons {
 public:
  explicit Comparisons(const Arguments& arguments)
      : arguments_(arguments),
        backend_(make_backend(arguments)),
        single_(make_cpu_backend()),
        peak_(fma_peak_gflops(backend_->information().instruction_set, arguments.threads)) {
    specification_.coefficients = "keller5";
    if (const auto given = arguments.own.find("coefficients"); given != arguments.own.end()) specification_.coefficients = given->second;
    queues_ = static_cast<int>(integer_option(arguments, "queues", queues_, 0, 64));
    if (const auto given = arguments.own.find("form"); given != arguments.own.end())
      specification_.form = iteration_form_from_name(given->second);
  }

  void orthogonalization(const Case& c) {
    NewtonSchulzSpecification specification = specification_;
    specification.restarts = c.restarts;
    std::vector<Tensor> matrices, inputs;
    for (int64_t i = 0; i < c.batch; ++i) {
      matrices.push_back(random_tensor(*backend_, {c.rows, c.columns}));
      inputs.push_back(random_tensor(*backend_, {c.rows, c.columns}));
    }
    const NewtonSchulzPlacement placement =
        newton_schulz_placement(specification, c.rows, c.columns, DType::float32, c.batch, arguments_.threads, int64_t{1} << 40);
    NewtonSchulzEngine engine(*backend_, queues_ > 0 ? queues_ : placement.queues);
    NaiveTwin twin(*backend_, c.rows, c.columns), single_twin(*single_, c.rows, c.columns);
    const CoefficientSet& set = coefficient_set(specification.coefficients);
    std::vector<std::function<void()>> functions = {[&] { engine.orthogonalize(backend_->compute_stream(), specification, matrices); },
                                                    [&] {
                                                      for (const Tensor& input : inputs) single_twin.run(set, input);
                                                    }};
    if (arguments_.threads > 1)
      functions.push_back([&] {
        for (const Tensor& input : inputs) twin.run(set, input);
      });
    const IterationForm form = newton_schulz_form(specification, c.rows, c.columns);
    const size_t restarts = specification.description().at("restarts").as_array().size();
    add(text(c.rows, " x ", c.columns), c.batch,
        form == IterationForm::direct ? "direct" : text("gram, ", restarts, restarts == 1 ? " restart" : " restarts"),
        static_cast<double>(c.batch) * newton_schulz_flops(specification, c.rows, c.columns), functions);
  }

  // A whole Muon update of one transformer block of GPT-2 124M: six matrices of 768 x 768, 3072 x 768 and 768 x 3072.
  void block_update() {
    const std::vector<Shape> shapes = {{768, 768}, {768, 768}, {768, 768}, {768, 768}, {3072, 768}, {768, 3072}};
    MuonOptions options = muon_options("custom");
    options.newton_schulz = specification_;
    const auto rule = make_muon(options);
    rule->prepare(*backend_, backend_->compute_stream(), {1, 1e-3, 1.0});
    std::vector<UpdateItem> items;
    for (const Shape& shape : shapes) {
      UpdateItem item;
      item.name = "w", item.parameter = random_tensor(*backend_, shape), item.gradient = random_tensor(*backend_, shape);
      item.state = {random_tensor(*backend_, shape)};
      items.push_back(item);
    }
    double flops = 0;
    for (const Shape& shape : shapes) flops += newton_schulz_flops(specification_, shape[0], shape[1]);
    const auto twin_update = [&](Backend& backend, std::vector<NaiveTwin>& twins) {
      Stream& stream = backend.compute_stream();
      const std::vector<double> momentum_values = {0.95, 1.0}, apply_values = {1e-3, 0.0, 1.0};
      const Tensor momentum = backend.allocate({2}, DType::float64, MemoryCategory::workspace, "hyper");
      const Tensor apply = backend.allocate({3}, DType::float64, MemoryCategory::workspace, "hyper");
      from_doubles(backend, momentum_values, momentum), from_doubles(backend, apply_values, apply);
      for (size_t i = 0; i < items.size(); ++i) {
        const Tensor update = backend.allocate(shapes[i], DType::float32, MemoryCategory::workspace, "update");
        MuonMomentum pass;
        pass.gradient = items[i].gradient, pass.momentum_buffer = items[i].state[0], pass.update = update, pass.hyper = momentum;
        backend.optimizer().muon_momentum(stream, pass);
        MuonApply end;
        end.parameter = items[i].parameter, end.hyper = apply;
        end.update = twins[i < 4 ? 0 : i - 3].run(coefficient_set(specification_.coefficients), update);
        backend.optimizer().muon_apply(stream, end);
      }
    };
    std::vector<NaiveTwin> twins, single_twins;
    for (size_t i : {0, 4, 5}) {
      twins.emplace_back(*backend_, shapes[i][0], shapes[i][1]);
      single_twins.emplace_back(*single_, shapes[i][0], shapes[i][1]);
    }
    std::vector<std::function<void()>> functions = {[&] { rule->global(*backend_, backend_->compute_stream(), items); },
                                                    [&] { twin_update(*single_, single_twins); }};
    if (arguments_.threads > 1) functions.push_back([&] { twin_update(*backend_, twins); });
    add("GPT-2 124M block, whole update", static_cast<int64_t>(items.size()), "Muon", flops, functions);
  }

  // Whether the table gives this case the Gram form without restarts, so that one is worth showing for comparison.
  bool in_one_segment(const Case& c) const {
    return newton_schulz_form(specification_, c.rows, c.columns) == IterationForm::gram &&
           coefficient_set(specification_.coefficients).restarts(DType::float32).empty();
  }

  Json::Array take() { return std::move(rows_); }

 private:
  void add(const std::string& matrix, int64_t batch, const std::string& form, double flops,
           const std::vector<std::function<void()>>& functions) {
    const Turns turns = take_turns(arguments_, functions);
    const size_t better = turns.seconds.size() > 2 && turns.seconds[2] < turns.seconds[1] ? 2 : 1;
    Json row = Json::object();
    row.set("matrix", matrix);
    row.set("batch", batch);
    row.set("form", form);
    row.set("milliseconds", turns.seconds[0] * 1e3);
    row.set("library_1_thread_milliseconds", turns.seconds[1] * 1e3);
    row.set("library_milliseconds", turns.seconds.back() * 1e3);
    row.set("speedup", turns.ratios[better].median);
    row.set("lower_quartile", turns.ratios[better].lower_quartile);
    row.set("upper_quartile", turns.ratios[better].upper_quartile);
    row.set("gflops", flops / turns.seconds[0] / 1e9);
    row.set("fraction_of_fma_peak", flops / turns.seconds[0] / 1e9 / peak_);
    rows_.push_back(std::move(row));
  }

  Arguments arguments_;
  std::unique_ptr<Backend> backend_, single_;
  NewtonSchulzSpecification specification_;
  int queues_ = 0;
  double peak_;
  Json::Array rows_;
};

constexpr const char* default_shapes =
    "128x128,128x128*32,256x256*8,384x384,768x768,768x768*4,2048x2048,384x1536,768x3072,3072x768,768x3072*2,1024x4096,gpt2";

// "768x3072" or "128x128*32".
Case parse(const std::string& given) {
  Case c;
  char by = 0, times = 0;
  std::istringstream fields(given);
  fields >> c.rows >> by >> c.columns;
  if (fields >> times) fields >> c.batch;
  if (by != 'x' || (times != 0 && times != '*') || c.rows <= 0 || c.columns <= 0 || c.batch <= 0)
    throw ConfigError(text("--shapes: expected ROWSxCOLUMNS, ROWSxCOLUMNS*BATCH or gpt2 between commas, found \"", given, "\""));
  return c;
}

// The same table where a device orthogonalises in float16: each shape as one recorded batch, against the direct form on full
// products of its library. The peak is that of the library's products in float16.
Json::Array run_on_device(const Arguments& arguments) {
  const auto given = arguments.own.find("shapes");
  const bool small = arguments.own.contains("small");
  const auto backend = make_backend(arguments);
  DeviceComparisons comparisons(arguments, *backend);
  NewtonSchulzSpecification specification;
  specification.coefficients = "keller5";
  if (const auto set = arguments.own.find("coefficients"); set != arguments.own.end()) specification.coefficients = set->second;
  if (const auto form = arguments.own.find("form"); form != arguments.own.end())
    specification.form = iteration_form_from_name(form->second);
  const int64_t side = small ? 64 : 8192;
  const double peak = product_flops_per_second(*backend, side, side, side, device_updates(*backend)->product_dtype());
  Json::Array rows;
  std::istringstream shapes(given != arguments.own.end() ? given->second : small ? "24x40*2,40x24,gpt2" : default_shapes);
  for (std::string each; std::getline(shapes, each, ',');) {
    int64_t batch = 1;
    DeviceRatio found;
    if (each == "gpt2") {
      found = comparisons.update(gpt2_matrices(small));
      batch = static_cast<int64_t>(gpt2_matrices(small).size());
    } else {
      const Case c = parse(each);
      found = comparisons.orthogonalization(specification, {c.rows, c.columns}, batch = c.batch);
    }
    // Own / library became the table's speedup.
    const Spread& ratio = found.result.ratio;
    Json row = Json::object();
    row.set("matrix", each == "gpt2" ? "GPT-2 124M, whole update" : found.work);
    row.set("batch", batch);
    row.set("form", found.form);
    row.set("library_form", found.library_form);
    row.set("milliseconds", found.result.a_seconds * 1e3);
    row.set("library_milliseconds", found.result.b_seconds * 1e3);
    row.set("speedup", 1.0 / ratio.median);
    row.set("lower_quartile", 1.0 / ratio.upper_quartile);
    row.set("upper_quartile", 1.0 / ratio.lower_quartile);
    row.set("gflops", found.flops / found.result.a_seconds / 1e9);
    row.set("fraction_of_gemm", found.flops / found.result.a_seconds / peak);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json::Array run(const Arguments& arguments) {
  if (device_name(arguments) != "cpu") return run_on_device(arguments);
  const auto given = arguments.own.find("shapes");
  Comparisons comparisons(arguments);
  std::istringstream shapes(given != arguments.own.end() ? given->second : default_shapes);
  for (std::string each; std::getline(shapes, each, ',');) {
    if (each == "gpt2") {
      comparisons.block_update();
      continue;
    }
    Case c = parse(each);
    comparisons.orthogonalization(c);
    c.restarts = {2};
    if (comparisons.in_one_segment(c)) comparisons.orthogonalization(c);
  }
  return comparisons.take();
}

}  // namespace

Benchmark newton_schulz_benchmark() {
  return {"newton-schulz",
          "the engine against the direct form on full library products: speedup = time of the better library run / time of the engine; "
          "gflops counts symmetric products at half",
          {{"shapes", "ROWSxCOLUMNS[*BATCH] or gpt2 (a whole Muon update of a block), between commas"},
           {"queues", "how the threads share a batch (1: inside each product); default: the engine's fixed choice"},
           {"form", "auto, direct or gram"},
           {"coefficients", "coefficient set, default keller5"},
           device_option,
           small_option},
          run};
}

}  // namespace dmuon::bench
