#include "device_update.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "device_direct.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/device.h"
#include "dmuon/newton_schulz/tuner.h"

namespace dmuon::bench {
namespace {

constexpr int64_t chunk = 16384;  // of sums of squares

Tensor half_matrix(Backend& backend, const Shape& shape, double deviation) {
  return random_tensor(backend, shape, deviation, DType::float16);
}

}  // namespace

std::vector<Shape> gpt2_matrices(bool small) {
  const int64_t layers = small ? 1 : 12, width = small ? 32 : 768;
  std::vector<Shape> shapes;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const Shape& shape : {Shape{3 * width, width}, Shape{width, width}, Shape{4 * width, width}, Shape{width, 4 * width}})
      shapes.push_back(shape);
  return shapes;
}

DeviceComparisons::DeviceComparisons(const Arguments& arguments, Backend& backend)
    : arguments_(arguments), backend_(backend), device_(device_updates(backend)) {
  if (!device_) throw DeviceError(text(backend.information().device, " does not orthogonalise by itself; choose --device cuda"));
}

std::vector<DeviceRatio> DeviceComparisons::symmetric(int64_t n, int64_t k, bool library) {
  BatchedProduct own;
  own.a = own.b = {half_matrix(backend_, {n, k}, 1.0 / std::sqrt(static_cast<double>(k)))};
  own.d = {half_matrix(backend_, {n, n}, 1.0)};
  own.transpose_b = true, own.symmetric = true;
  BatchedProduct full = own;
  full.symmetric = false, full.d = {half_matrix(backend_, {n, n}, 1.0)};
  std::vector<DeviceRatio> found;
  for (const std::string& form : device_->symmetric_forms(SymmetricShape::of(own), library)) {
    device_->use_symmetric_form(SymmetricShape::of(own), form);
    const auto queue = [&](const BatchedProduct& product) {
      return [&] { backend_.matrix().batched_product(backend_.compute_stream(), product); };
    };
    found.push_back({text("X X^T ", n, " x ", k), form, static_cast<double>(n) * static_cast<double>(n + 1) * static_cast<double>(k),
                     compare(arguments_, queue(own), queue(full), &backend_)});
  }
  return found;
}

DeviceRatio DeviceComparisons::orthogonalization(const NewtonSchulzSpecification& given, const Shape& shape, int64_t count) {
  NewtonSchulzSpecification specification = given;
  specification.dtype = device_->product_dtype();
  Stream& stream = backend_.compute_stream();
  const int64_t chunks = divide_up(shape.elements(), chunk);
  const Tensor sums = backend_.allocate(Shape{count, chunks}, DType::float64, MemoryCategory::workspace, "norms");
  std::vector<Tensor> matrices;
  for (int64_t i = 0; i < count; ++i) {
    matrices.push_back(random_tensor(backend_, shape));
    backend_.optimizer().square_sums(stream, {matrices.back(), sums.flat(i * chunks, chunks), chunk});
  }
  NewtonSchulzTuner(backend_, nullptr).choose_symmetric_forms(specification, shape[0], shape[1], count);
  DeviceNewtonSchulz newton_schulz(backend_, specification, shape[0], shape[1], count);
  std::vector<Tensor> tensors = newton_schulz.tensors();
  tensors.insert(tensors.end(), matrices.begin(), matrices.end());
  tensors.push_back(sums);
  const uint64_t key = hash_name(text("benchmark ", shape.to_string(), count, specification.description().dump()));
  DeviceDirect direct(backend_, shape);
  const CoefficientSet& set = coefficient_set(specification.coefficients);
  const Comparison result = compare(
      arguments_, [&] { device_->replay(stream, key, tensors, [&] { newton_schulz.queue(stream, matrices, sums); }); },
      [&] {
        for (int64_t i = 0; i < count; ++i) direct.queue(stream, set, matrices[static_cast<size_t>(i)], sums.flat(i * chunks, chunks));
      },
      &backend_);
  return {text(shape[0], " x ", shape[1]), newton_schulz.gram() ? "gram" : "direct",
          static_cast<double>(count) * newton_schulz_flops(specification, shape[0], shape[1]), result};
}

DeviceRatio DeviceComparisons::update(const std::vector<Shape>& matrices) {
  std::vector<UpdateItem> items;
  std::map<std::string, ShapeCount> counts;
  for (const Shape& shape : matrices) {
    UpdateItem item;
    item.name = "w", item.parameter = random_tensor(backend_, shape), item.gradient = random_tensor(backend_, shape);
    item.state = {random_tensor(backend_, shape)};
    items.push_back(item);
    ShapeCount& count = counts[shape.to_string()];
    count.shape = shape, ++count.count;
  }
  MuonOptions options;
  options.newton_schulz.dtype = device_->product_dtype();
  const auto rule = make_muon(options);
  Stream& stream = backend_.compute_stream();
  rule->prepare(backend_, stream, {1, 1e-3, 1.0});
  std::vector<ShapeCount> shapes;
  double flops = 0;
  for (const auto& [name, count] : counts) {
    shapes.push_back(count);
    flops += static_cast<double>(count.count) * newton_schulz_flops(options.newton_schulz, count.shape[0], count.shape[1]);
  }
  rule->tune(backend_, shapes, nullptr);
  return {text("Muon update of ", items.size(), " matrices, ", matrices.front().to_string(), " the first"), "auto", flops,
          compare(
              arguments_, [&] { rule->global(backend_, stream, items); }, [&] { direct_update(options, items); }, &backend_)};
}

// Momentum, norm, the direct form, apply; one matrix after another.
void DeviceComparisons::direct_update(const MuonOptions& options, std::span<const UpdateItem> items) {
  Stream& stream = backend_.compute_stream();
  if (!hyper_.defined()) {
    hyper_ = backend_.allocate({5}, DType::float64, MemoryCategory::workspace, "hyper");
    from_doubles(backend_, std::vector<double>{0.95, 1.0, 1e-3, 0.0, 1.0}, hyper_);
  }
  for (const UpdateItem& item : items) {
    const Shape shape = item.parameter.shape();
    const Tensor update = backend_.allocate(shape, DType::float32, MemoryCategory::workspace, "direct form");
    const Tensor sums = backend_.allocate({divide_up(shape.elements(), chunk)}, DType::float64, MemoryCategory::workspace, "direct form");
    MuonMomentum momentum;
    momentum.gradient = item.gradient, momentum.momentum_buffer = item.state[0], momentum.update = update;
    momentum.square_sums = sums, momentum.hyper = hyper_.flat(0, 2);
    backend_.optimizer().muon_momentum(stream, momentum);
    DeviceDirect direct(backend_, shape);
    const Tensor result = direct.queue(stream, coefficient_set(options.newton_schulz.coefficients), update, sums);
    backend_.optimizer().muon_apply(stream, {item.parameter, result, hyper_.flat(2, 3)});
  }
}

namespace {

Json row_of(Backend& backend, const DeviceRatio& found) {
  Json row = Json::object();
  row.set("device", backend.information().device);
  row.set("work", found.work);
  row.set("form", found.form);
  row.set("milliseconds", found.result.a_seconds * 1e3);
  row.set("library_milliseconds", found.result.b_seconds * 1e3);
  row.set("time_ratio", found.result.ratio.median);
  row.set("lower_quartile", found.result.ratio.lower_quartile);
  row.set("upper_quartile", found.result.ratio.upper_quartile);
  row.set("tflops", found.flops / found.result.a_seconds / 1e12);
  return row;
}

Json::Array run(const Arguments& arguments) {
  const bool small = arguments.own.contains("small");
  const auto backend = make_backend(arguments);
  DeviceComparisons comparisons(arguments, *backend);
  Json::Array rows;
  for (const auto& [n, k] :
       small ? std::vector<std::pair<int64_t, int64_t>>{{64, 64}, {64, 96}}
             : std::vector<std::pair<int64_t, int64_t>>{{768, 768}, {768, 3072}, {1024, 4096}, {2048, 2048}, {4096, 4096}, {4096, 14336}})
    for (const DeviceRatio& found : comparisons.symmetric(n, k)) rows.push_back(row_of(*backend, found));
  rows.push_back(row_of(*backend, comparisons.update(gpt2_matrices(small))));
  return rows;
}

}  // namespace

Benchmark device_update_benchmark() {
  return {"device-update",
          "on a GPU: symmetric products in float16 by form, and the Muon update of GPT-2 124M's matrices, against full products of cuBLAS: "
          "time_ratio = own / library",
          {{"device", "cuda (the default) or auto"}, small_option},
          run,
          "cuda"};
}

}  // namespace dmuon::bench
