#include "device_update.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "direct_update.h"
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

// That both sides computed the same thing. Forms differ by their rounding only, which for small singular values is not little.
void check_same(Backend& backend, const Tensor& own, const Tensor& library) {
  const std::vector<double> a = to_doubles(backend, own), b = to_doubles(backend, library);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  if (!(difference <= 0.09 * norm))
    throw NumericalError(text("the benchmark's two forms of ", own.to_string(), " differ by ",
                              format_number(std::sqrt(difference / norm), 3), " of their norm, expected 0.3 at most"));
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
  Multiply full;
  full.a = full.b = own.a[0], full.c = half_matrix(backend_, {n, n}, 1.0), full.transpose_b = true;
  Stream& stream = backend_.compute_stream();
  const std::vector<Tensor> own_tensors{own.a[0], own.d[0]}, full_tensors{full.a, full.c};
  // One product is too short to be started by itself.
  const int products_of_recording = arguments_.own.contains("small") ? 1 : 8;
  const auto repeated = [&](const auto& queue) {
    for (int i = 0; i < products_of_recording; ++i) queue();
  };
  std::vector<DeviceRatio> found;
  for (const std::string& form : device_->symmetric_forms(SymmetricShape::of(own), library)) {
    device_->use_symmetric_form(SymmetricShape::of(own), form);
    const uint64_t key = hash_name(text("benchmark of X X^T as ", form));
    DeviceRatio ratio{
        text("X X^T ", n, " x ", k), form, "", static_cast<double>(n) * static_cast<double>(n + 1) * static_cast<double>(k), {}};
    take_if_faster(
        ratio,
        [&] { device_->replay(stream, key, own_tensors, [&] { repeated([&] { backend_.matrix().batched_product(stream, own); }); }); },
        {"full product", full_tensors, [&] { repeated([&] { backend_.matrix().multiply(stream, full); }); }});
    ratio.result.a_seconds /= products_of_recording, ratio.result.b_seconds /= products_of_recording;
    found.push_back(ratio);
  }
  return found;
}

void DeviceComparisons::take_if_faster(DeviceRatio& best, const std::function<void()>& own, const LibraryWork& library) {
  const uint64_t key = hash_name(text("benchmark of the library, ", library.form));
  const Comparison found = compare(
      arguments_, own, [&] { device_->replay(backend_.compute_stream(), key, library.tensors, library.queue); }, &backend_);
  if (!best.library_form.empty() && found.ratio.median <= best.result.ratio.median) return;
  best.library_form = library.form;
  best.result = found;
}

DeviceRatio DeviceComparisons::orthogonalization(const NewtonSchulzSpecification& given, const Shape& shape, int64_t count) {
  NewtonSchulzSpecification specification = given;
  specification.dtype = device_->product_dtype();
  Stream& stream = backend_.compute_stream();
  const int64_t chunks = divide_up(shape.elements(), chunk);
  const Tensor sums = backend_.allocate(Shape{count, chunks}, DType::float64, MemoryCategory::workspace, "norms");
  std::vector<Tensor> matrices, sums_of;
  for (int64_t i = 0; i < count; ++i) {
    matrices.push_back(random_tensor(backend_, shape));
    sums_of.push_back(sums.flat(i * chunks, chunks));
    backend_.optimizer().square_sums(stream, {matrices.back(), sums_of.back(), chunk});
  }
  NewtonSchulzTuner(backend_, nullptr).choose_symmetric_forms(specification, shape[0], shape[1], count);
  DeviceNewtonSchulz newton_schulz(backend_, specification, shape[0], shape[1], count);
  std::vector<Tensor> given_tensors = matrices, tensors = newton_schulz.tensors();
  given_tensors.push_back(sums);
  tensors.insert(tensors.end(), given_tensors.begin(), given_tensors.end());
  const uint64_t key = hash_name(text("benchmark ", shape.to_string(), count, specification.description().dump()));
  DeviceRatio ratio{text(shape[0], " x ", shape[1]),
                    newton_schulz.gram() ? "gram" : "direct",
                    "",
                    static_cast<double>(count) * newton_schulz_flops(specification, shape[0], shape[1]),
                    {}};
  const CoefficientSet& set = coefficient_set(specification.coefficients);
  for (const DirectForm& form : direct_forms(count)) {
    DeviceDirect direct(backend_, shape, form);
    std::vector<Tensor> touched = direct.tensors();
    touched.insert(touched.end(), given_tensors.begin(), given_tensors.end());
    std::span<const Tensor> results;
    size_t first = 0;  // of the matrices that `results` are of
    take_if_faster(ratio, [&] { device_->replay(stream, key, tensors, [&] { newton_schulz.queue(stream, matrices, sums); }); },
                   {form.name(), touched, [&] {
                      for (first = 0; first < matrices.size(); first += results.size()) {
                        const size_t group = std::min(matrices.size() - first, static_cast<size_t>(form.batch));
                        results =
                            direct.queue(stream, set, std::span(matrices).subspan(first, group), std::span(sums_of).subspan(first, group));
                      }
                    }});
    check_same(backend_, newton_schulz.results().back(), results.back());
  }
  return ratio;
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
  int64_t most = 1;  // matrices of one shape
  for (const auto& [name, count] : counts) {
    shapes.push_back(count);
    most = std::max(most, count.count);
    flops += static_cast<double>(count.count) * newton_schulz_flops(options.newton_schulz, count.shape[0], count.shape[1]);
  }
  rule->tune(backend_, shapes, nullptr);
  DeviceRatio ratio{
      text("Muon update of ", items.size(), " matrices, ", matrices.front().to_string(), " the first"), "auto", "", flops, {}};
  for (const DirectForm& form : direct_forms(most)) {
    DirectUpdate direct(backend_, options, items, form);
    take_if_faster(ratio, [&] { rule->global(backend_, stream, items); }, {form.name(), direct.tensors(), [&] { direct.queue(stream); }});
  }
  return ratio;
}

namespace {

Json row_of(Backend& backend, const DeviceRatio& found) {
  Json row = Json::object();
  row.set("device", backend.information().device);
  row.set("work", found.work);
  row.set("form", found.form);
  row.set("library_form", found.library_form);
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
