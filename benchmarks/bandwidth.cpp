// Memory bandwidth of this machine, and the share of it that the optimizer passes reach.
#include "support.h"

namespace dmuon::bench {
namespace {

Json row(const std::string& what, double bytes, double seconds, const Spread& fraction) {
  Json row = Json::object();
  row.set("pass", what);
  row.set("gigabytes_per_second", bytes / seconds / 1e9);
  row.set("fraction_of_triad", fraction.median);
  row.set("lower_quartile", fraction.lower_quartile);
  row.set("upper_quartile", fraction.upper_quartile);
  return row;
}

Json::Array run(const Arguments& arguments) {
  constexpr int64_t elements = int64_t{1} << 24;
  const auto backend = make_backend(arguments);
  Stream& stream = backend->compute_stream();
  Triad triad(arguments.threads, elements);
  Json::Array rows;
  // Fraction of triad: bytes per second of the pass over those of the triad run beside it.
  const auto add = [&](const std::string& name, double bytes, const std::function<void()>& pass) {
    const Comparison result = compare(
        arguments, [&] { triad.run(); }, pass);
    const double factor = bytes / triad.bytes();
    rows.push_back(row(name, bytes, result.b_seconds,
                       {result.ratio.median * factor, result.ratio.lower_quartile * factor, result.ratio.upper_quartile * factor}));
  };
  volatile double sink = 0;
  add("triad", triad.bytes(), [&] { triad.run(); });
  add("read", triad.read_bytes(), [&] { sink = triad.read(); });

  const double n = 4.0 * static_cast<double>(elements);
  const Tensor p = random_tensor(*backend, {elements}), g = random_tensor(*backend, {elements}), m = random_tensor(*backend, {elements});
  const Tensor v = random_tensor(*backend, {elements});
  backend->zero(stream, v);
  const auto hyper = [&](const std::vector<double>& values) {
    const Tensor tensor =
        backend->allocate({static_cast<int64_t>(values.size())}, DType::float64, MemoryCategory::workspace, "hyper-parameters");
    from_doubles(*backend, values, tensor);
    return tensor;
  };
  const Tensor adam = hyper({1e-3, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.5, 1.0}), sgd = hyper({1e-3, 0.9, 0.0, 0.0, 1.0, 0.0, 0.0});
  const Tensor momentum = hyper({0.95, 1.0}), apply = hyper({1e-3, 0.1, 0.2});
  const Tensor sums = backend->allocate({elements / 16384}, DType::float64, MemoryCategory::workspace, "square sums");
  const Tensor count = backend->allocate({1}, DType::int64, MemoryCategory::workspace, "count");
  add("adamw", 7 * n, [&] { backend->optimizer().adamw(stream, {p, g, m, v, adam}); });
  add("sgd", 5 * n, [&] { backend->optimizer().sgd(stream, {p, g, m, sgd}); });
  add("muon_momentum", 4 * n, [&] { backend->optimizer().muon_momentum(stream, {false, true, g, m, v, sums, 16384, momentum}); });
  add("muon_apply", 3 * n, [&] { backend->optimizer().muon_apply(stream, {p, g, apply}); });
  add("square_sums", n, [&] { backend->optimizer().square_sums(stream, {g, sums, 16384}); });
  add("count_non_finite", n, [&] { backend->optimizer().count_non_finite(stream, {g, count}); });
  add("scaled_add", 3 * n, [&] { backend->activation().scaled_add(stream, {g, p, 0.5, true}); });
  return rows;
}

}  // namespace

Benchmark bandwidth_benchmark() { return {"bandwidth", "Triad and read bandwidth; optimizer passes as fractions of the triad", {}, run}; }

}  // namespace dmuon::bench
