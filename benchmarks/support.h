// What the benchmarks share: the registration table, paired measurement and reports.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/core/json.h"

namespace dmuon::bench {

struct Arguments {
  int threads = 1;
  int pairs = 15;
  std::map<std::string, std::string> own;  // the benchmark's own options that were given
};

// One subcommand of dmuon_bench; main.cpp lists them all.
struct Benchmark {
  std::string name, summary;
  std::vector<std::pair<std::string, std::string>> options;  // name without dashes, help
  // Returns the rows of the report: objects with equal keys, spelt out. Of several ranks only the first returns rows.
  std::function<Json::Array(const Arguments&)> run;
  std::string default_device = "cpu";  // where --device is not given
};
Benchmark device_bars_benchmark();
Benchmark device_update_benchmark();
Benchmark gemm_benchmark();
Benchmark collectives_benchmark();
Benchmark symmetric_product_benchmark();
Benchmark tokenize_benchmark();
Benchmark bandwidth_benchmark();
Benchmark decode_benchmark();
Benchmark kernels_benchmark();
Benchmark train_step_benchmark();
Benchmark memory_benchmark();
Benchmark load_benchmark();
Benchmark optimizer_step_benchmark();
Benchmark overlap_benchmark();
Benchmark step_ratio_benchmark();
Benchmark weak_scaling_benchmark();
Benchmark newton_schulz_benchmark();
Benchmark newton_schulz_error_benchmark();
Benchmark sign_kernels_benchmark();
Benchmark sign_transport_benchmark();

// Median and quartiles.
struct Spread {
  double median = 0, lower_quartile = 0, upper_quartile = 0;
};
Spread spread_of(std::vector<double> values);

// A and B alternate, after one warm-up of each; a turn repeats its function until it lasts about 20 ms. Seconds are CPU time
// of the calling thread when `threads` is 1, so that a busy machine does not count, otherwise elapsed time.
// On a device (`backend` has one) seconds are what passes on its stream between two events, the host's queueing included where the
// device waits for it.
struct Comparison {
  Spread ratio;                         // seconds of A / seconds of B, of neighbouring turns
  double a_seconds = 0, b_seconds = 0;  // medians for one call
};
Comparison compare(const Arguments& arguments, const std::function<void()>& a, const std::function<void()>& b, Backend* backend = nullptr);
Spread measure(const Arguments& arguments, const std::function<void()>& a, Backend* backend = nullptr);

// The rate of c = a b^T in `dtype`, best of several turns.
double product_flops_per_second(Backend& backend, int64_t m, int64_t n, int64_t k, DType dtype);

// The number that `value`, given as --name, spells. ConfigError naming the option and the range unless it is one in [least, most].
double number_option(const std::string& name, const std::string& value, double least, double most);

// What this host's (virtual) network card has sent; 0 where there is none called eth0.
double network_card_bytes();

// What --device names; the CPU where it is not given.
std::string device_name(const Arguments& arguments);
inline const std::pair<std::string, std::string> device_option = {"device", "cpu (the default), cuda or auto"};
inline const std::pair<std::string, std::string> small_option = {"small",
                                                                 "any value: small shapes, for a device that the host stands in for"};
std::unique_ptr<Backend> make_backend(const Arguments& arguments);
// Normal numbers, different for every call.
Tensor random_tensor(Backend& backend, const Shape& shape, double deviation = 1.0, DType dtype = DType::float32);

// c = a + factor * b over arrays far larger than the caches: the bandwidth that passes over memory are compared with.
class Triad {
 public:
  explicit Triad(int threads, int64_t elements = int64_t{1} << 24);
  void run();
  double read();  // sums one array
  double bytes() const { return 3.0 * 4.0 * static_cast<double>(elements_); }
  double read_bytes() const { return 4.0 * static_cast<double>(elements_); }

 private:
  int threads_;
  int64_t elements_;
  std::shared_ptr<Allocator> allocator_;  // the backend's kind of memory: same pages, same alignment
  StorageHandle storage_;
  float *a_, *b_, *c_;
};

// {"processor", "instruction_set", "gemm", "threads", "load_average"}
Json machine_of(const Arguments& arguments);

}  // namespace dmuon::bench
