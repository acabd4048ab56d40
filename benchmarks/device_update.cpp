// On a device with DeviceUpdates: symmetric products in float16 against full ones of the library, and the Muon update of all
// matrices of GPT-2 124M against the direct form on the library's full products.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/device.h"
#include "dmuon/newton_schulz/tuner.h"
#include "dmuon/optim/muon.h"
#include "support.h"
#include "train/devices.h"

namespace dmuon::bench {
namespace {

// Seconds of one call in elapsed time, `repetitions` of them behind one another before each wait for the device, in turns.
struct Ratio {
  double own_seconds = 0, library_seconds = 0;
  Spread ratio;  // own / library
};
Ratio compare_on_device(Backend& backend, int pairs, int repetitions, const std::function<void()>& own,
                        const std::function<void()>& library) {
  const auto seconds = [&](const std::function<void()>& work) {
    backend.compute_stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repetitions; ++i) work();
    backend.compute_stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repetitions;
  };
  for (int i = 0; i < 3; ++i) own(), library();  // warm up, and record graphs
  std::vector<double> own_times, library_times, ratios;
  for (int pair = 0; pair < pairs; ++pair) {
    own_times.push_back(seconds(own));
    library_times.push_back(seconds(library));
    ratios.push_back(own_times.back() / library_times.back());
  }
  return {spread_of(own_times).median, spread_of(library_times).median, spread_of(ratios)};
}

Tensor half_matrix(Backend& backend, const Shape& shape, double deviation) {
  const Tensor half = backend.allocate(shape, DType::float16, MemoryCategory::workspace, "benchmark");
  backend.copy(backend.compute_stream(), random_tensor(backend, shape, deviation), half);
  return half;
}

class Comparisons {
 public:
  Comparisons(const Arguments& arguments, int repetitions)
      : arguments_(arguments), repetitions_(repetitions), backend_(open(arguments)), device_(device_updates(*backend_)) {
    if (!device_) throw DeviceError(text("device-update: ", backend_->information().device, " does not orthogonalise by itself"));
  }

  // X X^T of an n x k matrix in every form of the kernel.
  void symmetric(int64_t n, int64_t k) {
    BatchedProduct own;
    own.a = own.b = {half_matrix(*backend_, {n, k}, 1.0 / std::sqrt(static_cast<double>(k)))};
    own.d = {half_matrix(*backend_, {n, n}, 1.0)};
    own.transpose_b = true, own.symmetric = true;
    BatchedProduct full = own;
    full.symmetric = false, full.d = {half_matrix(*backend_, {n, n}, 1.0)};
    for (const std::string& form : device_->symmetric_forms(own)) {
      device_->use_symmetric_form(own, form);
      const Ratio result = compare_on_device(
          *backend_, arguments_.pairs, repetitions_, [&] { backend_->matrix().batched_product(backend_->compute_stream(), own); },
          [&] { backend_->matrix().batched_product(backend_->compute_stream(), full); });
      add(text("X X^T ", n, " x ", k), form, static_cast<double>(n) * static_cast<double>(n + 1) * static_cast<double>(k), result);
    }
  }

  // `layers` times 2304 x 768, 768 x 768, 3072 x 768 and 768 x 3072, scaled down by `divisor`.
  void update(int layers, int64_t divisor) {
    const int64_t width = 768 / divisor;
    std::vector<UpdateItem> items;
    for (int layer = 0; layer < layers; ++layer)
      for (const Shape& shape : {Shape{3 * width, width}, Shape{width, width}, Shape{4 * width, width}, Shape{width, 4 * width}}) {
        UpdateItem item;
        item.name = "w", item.parameter = random_tensor(*backend_, shape), item.gradient = random_tensor(*backend_, shape);
        item.state = {random_tensor(*backend_, shape)};
        items.push_back(item);
      }
    MuonOptions options;
    options.newton_schulz.dtype = device_->product_dtype();
    const auto rule = make_muon(options);
    Stream& stream = backend_->compute_stream();
    rule->prepare(*backend_, stream, {1, 1e-3, 1.0});
    std::map<std::string, ShapeCount> counts;
    for (const UpdateItem& item : items) {
      ShapeCount& count = counts[item.parameter.shape().to_string()];
      count.shape = item.parameter.shape(), ++count.count;
    }
    std::vector<ShapeCount> shapes;
    double flops = 0;
    for (const auto& [name, count] : counts) {
      shapes.push_back(count);
      flops += static_cast<double>(count.count) * newton_schulz_flops(options.newton_schulz, count.shape[0], count.shape[1]);
    }
    rule->tune(*backend_, shapes, nullptr);
    const Ratio result = compare_on_device(
        *backend_, arguments_.pairs, 1, [&] { rule->global(*backend_, stream, items); }, [&] { direct(options, items); });
    add(text("Muon update of ", items.size(), " matrices of width ", width), "auto", flops, result);
  }

  Json::Array take() { return std::move(rows_); }

 private:
  static std::unique_ptr<Backend> open(const Arguments& arguments) {
    const auto given = arguments.own.find("device");
    return dmuon::make_backend(given != arguments.own.end() ? given->second : "cuda", BackendOptions{});
  }

  // Momentum, norm, the direct form with three full products an iteration, apply; one matrix after another.
  void direct(const MuonOptions& options, const std::vector<UpdateItem>& items) {
    Stream& stream = backend_->compute_stream();
    const CoefficientSet& set = coefficient_set(options.newton_schulz.coefficients);
    if (!hyper_.defined()) {
      hyper_ = backend_->allocate({5}, DType::float64, MemoryCategory::workspace, "hyper");
      from_doubles(*backend_, std::vector<double>{0.95, 1.0, 1e-3, 0.0, 1.0}, hyper_);
    }
    const auto scratch = [&](const Shape& shape, DType dtype) {
      return backend_->allocate(shape, dtype, MemoryCategory::workspace, "direct form");
    };
    for (const UpdateItem& item : items) {
      const Shape shape = item.parameter.shape();
      const bool tall = shape[0] > shape[1];
      const int64_t side = std::min(shape[0], shape[1]), chunks = (shape.elements() + 16383) / 16384;
      const Tensor update = scratch(shape, DType::float32), sums = scratch({chunks}, DType::float64);
      const Tensor x[] = {scratch(shape, DType::float16), scratch(shape, DType::float16)};
      const Tensor gram = scratch({side, side}, DType::float16), factor = scratch({side, side}, DType::float16);
      MuonMomentum momentum;
      momentum.gradient = item.gradient, momentum.momentum_buffer = item.state[0], momentum.update = update;
      momentum.square_sums = sums, momentum.hyper = hyper_.flat(0, 2);
      backend_->optimizer().muon_momentum(stream, momentum);
      Normalize normalize;
      normalize.in = update, normalize.square_sums = sums, normalize.out = x[0];
      backend_->optimizer().normalize(stream, normalize);
      for (int i = 0; i < set.iterations; ++i) {
        const auto& [a, b, c] = set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)];
        const Tensor &current = x[i % 2], &next = x[(i + 1) % 2];
        BatchedProduct r, p, apply;
        r.a = r.b = {current}, r.d = {gram}, (tall ? r.transpose_a : r.transpose_b) = true;
        p.a = p.b = p.c = {gram}, p.d = {factor}, p.alpha = c, p.beta = b, p.diagonal = a;
        apply.a = {tall ? current : factor}, apply.b = {tall ? factor : current}, apply.d = {next};
        for (const BatchedProduct* product : {&r, &p, &apply}) backend_->matrix().batched_product(stream, *product);
      }
      backend_->optimizer().muon_apply(stream, {item.parameter, x[set.iterations % 2], hyper_.flat(2, 3)});
    }
  }

  void add(const std::string& work, const std::string& form, double flops, const Ratio& result) {
    Json row = Json::object();
    row.set("device", backend_->information().device);
    row.set("work", work);
    row.set("form", form);
    row.set("milliseconds", result.own_seconds * 1e3);
    row.set("library_milliseconds", result.library_seconds * 1e3);
    row.set("time_ratio", result.ratio.median);
    row.set("lower_quartile", result.ratio.lower_quartile);
    row.set("upper_quartile", result.ratio.upper_quartile);
    row.set("tflops", flops / result.own_seconds / 1e12);
    rows_.push_back(std::move(row));
  }

  Arguments arguments_;
  int repetitions_;
  std::unique_ptr<Backend> backend_;
  DeviceUpdates* device_;
  Tensor hyper_;
  Json::Array rows_;
};

Json::Array run(const Arguments& arguments) {
  // A stand-in that runs on the host takes small shapes.
  const bool small = arguments.own.contains("small");
  Comparisons comparisons(arguments, small ? 1 : 20);
  for (const auto& [n, k] :
       small ? std::vector<std::pair<int64_t, int64_t>>{{64, 64}, {64, 96}}
             : std::vector<std::pair<int64_t, int64_t>>{{768, 768}, {768, 3072}, {1024, 4096}, {2048, 2048}, {4096, 4096}, {4096, 14336}})
    comparisons.symmetric(n, k);
  comparisons.update(small ? 1 : 12, small ? 24 : 1);
  return comparisons.take();
}

}  // namespace

Benchmark device_update_benchmark() {
  return {"device-update",
          "on a GPU: symmetric products in float16 by form, and the Muon update of GPT-2 124M's matrices, against full products of cuBLAS: "
          "time_ratio = own / library",
          {{"device", "cuda (the default) or auto"}, {"small", "any value: small shapes, for a device that the host stands in for"}},
          run};
}

}  // namespace dmuon::bench
