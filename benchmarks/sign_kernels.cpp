// The kernels of one-bit votes against reading the same number of bytes from the same memory, in the L2 cache and far beyond
// all caches.
#include "sign_kernels.h"

#include <algorithm>

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "options.h"
#include "support.h"

namespace dmuon::bench {
namespace {

typedef uint64_t Quads __attribute__((vector_size(32), aligned(8), may_alias));
constexpr int64_t accumulators = 8, stride = 4 * accumulators;

// Not inlined into the loop over threads: only this function may use AVX2.
__attribute__((target("avx2"), noinline)) uint64_t read_wide(const uint64_t* words, int64_t count) {
  Quads sums[accumulators] = {};
  int64_t i = 0;
  for (; i + stride <= count; i += stride)
#pragma GCC unroll 8
    for (int64_t j = 0; j < accumulators; ++j) sums[j] |= *reinterpret_cast<const Quads*>(words + i + 4 * j);
  uint64_t total = 0;
  for (const Quads& sum : sums) total |= sum[0] | sum[1] | sum[2] | sum[3];
  for (; i < count; ++i) total |= words[i];
  return total;
}
uint64_t read_narrow(const uint64_t* words, int64_t count) {
  uint64_t total = 0;
#pragma omp simd reduction(| : total)
  for (int64_t i = 0; i < count; ++i) total |= words[i];
  return total;
}

class SignKernelsTable {
 public:
  // Everything works on views of one array of random numbers.
  SignKernelsTable(const Arguments& arguments, int64_t bytes)
      : arguments_(arguments), bytes_(bytes), backend_(make_backend(arguments)), stream_(backend_->compute_stream()) {
    numbers_ = backend_->allocate({bytes / 4}, DType::float32, MemoryCategory::workspace, "numbers of the benchmark");
    fill(numbers_, 0.0);
    words_ = backend_->allocate({bytes / 16}, DType::int64, MemoryCategory::workspace, "words of the benchmark");
    backend_->zero(stream_, words_);
    hyper_ = backend_->allocate({ApplySigns::count}, DType::float64, MemoryCategory::workspace, "hyper-parameters");
    from_doubles(*backend_, {{1e-3, 0.1, 1.0}}, hyper_);
  }

  void run() {
    const int64_t n = numbers_.elements();
    pack("pack float32", numbers_);
    const Tensor halves = view(DType::bfloat16, 0, 2 * n);
    fill(halves, 0.0);
    pack("pack bfloat16", halves);
    fill(numbers_, 0.0);
    for (const int workers : {2, 3, 4, 8, 16}) vote(workers);
    count(8);
    const SignSegments piece = piece_of(n);
    const Tensor words = words_.flat(0, sign_words(n)), header = words_.flat(sign_words(n), sign_header_words(piece));
    pack_into(numbers_, words, header, piece);  // every segment is active
    pack("pack float32, width 96", numbers_, 96);
    add("unpack", 0, bytes_, [&] { backend_->signs().unpack(stream_, {words, header, numbers_, piece}); });
    add("apply", 0, 2 * bytes_, [&] { backend_->signs().apply(stream_, {numbers_, words, header, piece, hyper_}); });
    for (const int percent : {1, 50, 100}) {
      fill(numbers_, percent / 100.0);
      pack(text("pack float32, ", percent, " % zeros"), numbers_);
    }
    fill(numbers_, 0.01);
    pack("pack float32, width 96, 1 % zeros", numbers_, 96);
    fill(halves, 0.01);
    pack("pack bfloat16, 1 % zeros", halves);
    const int64_t integers = n / 8;  // words and their numbers together stay as large as the array
    const Tensor packed = words_.flat(0, integers / 64);
    add("expand int8", 0, integers, [&] { backend_->signs().expand(stream_, {packed, view(DType::int8, 0, integers), 0, 1}); });
    add("threshold int8", 0, integers, [&] { backend_->signs().threshold(stream_, {view(DType::int8, 0, integers), packed}); });
  }
  Json::Array take() { return std::move(rows_); }

 private:
  static SignSegments piece_of(int64_t count, int64_t row_length = 1024) { return {0, count, row_length, 16384}; }
  Tensor view(DType dtype, int64_t first, int64_t count) const {
    return {numbers_.storage(), numbers_.offset() + first * size_of(dtype), {count}, dtype};
  }

  void pack_into(const Tensor& in, const Tensor& words, const Tensor& header, const SignSegments& piece) {
    backend_->signs().pack(stream_, {in, words, header, piece, 1});
  }
  void pack(const std::string& operation, const Tensor& in, int64_t row_length = 1024) {
    const SignSegments piece = piece_of(in.elements(), row_length);
    const Tensor words = words_.flat(0, sign_words(in.elements()));
    const Tensor header = words_.flat(words.elements(), sign_header_words(piece));
    add(operation, 0, in.bytes(), [&] { pack_into(in, words, header, piece); });
  }
  // Random numbers, every one zero with a chance of `zeros`: with 1 %, every other word holds a zero.
  void fill(const Tensor& array, double zeros) {
    const Tensor some = random_tensor(*backend_, {std::min<int64_t>(array.elements(), 1 << 22)});
    const Random random(7, RandomStream::test);
    float* values = some.data<float>();
    for (int64_t i = 0; i < some.elements() && zeros > 0.0; ++i)
      if (random.uniform(static_cast<uint64_t>(i)) < zeros) values[i] = 0.0F;
    const Tensor converted = backend_->allocate(some.shape(), array.dtype(), MemoryCategory::workspace, "numbers to repeat");
    backend_->optimizer().convert(stream_, {some, converted});
    for (int64_t i = 0; i < array.elements(); i += some.elements()) {
      const int64_t count = std::min(some.elements(), array.elements() - i);
      backend_->copy(stream_, converted.flat(0, count), array.flat(i, count));
    }
  }
  std::vector<Tensor> inputs(int workers) const {
    // No power of two apart, where all would meet in one set of the caches: buffers of a real model aren't.
    const int64_t words = (bytes_ / 8 / workers - 72) / 8 * 8;
    std::vector<Tensor> inputs;
    for (int64_t i = 0; i < workers; ++i) inputs.push_back(view(DType::int64, i * words, words));
    return inputs;
  }
  // Into an array of their own where it fits, as transports do, else in place.
  void vote(int workers) {
    const std::vector<Tensor> in = inputs(workers);
    const Tensor result = in[0].elements() <= words_.elements() ? words_.flat(0, in[0].elements()) : in[0];
    add("vote", workers, in[0].bytes() * workers, [&, tie = 0]() mutable {
      backend_->signs().vote(stream_, {in, result, 0, tie++ % static_cast<int>(in.size())});
    });
  }
  void count(int workers) {
    const std::vector<Tensor> in = inputs(workers);
    const int64_t words = in[0].elements(), planes = sign_count_planes(workers);
    if (planes * words > words_.elements()) return add("count", workers, 0, {});
    const Tensor out = words_.flat(0, planes * words);
    add("count", workers, in[0].bytes() * workers, [&] { backend_->signs().count(stream_, {in, out, -1}); });
  }

  void add(const std::string& operation, int workers, int64_t bytes, const std::function<void()>& run) {
    if (bytes == 0) return;
    const uint64_t* memory = reinterpret_cast<const uint64_t*>(numbers_.data<float>());
    const int64_t all = bytes_ / 8;
    const Comparison result = compare(
        arguments_, [&] { sink_ = read_all(memory, all, arguments_.threads); }, run);
    const double factor = static_cast<double>(bytes) / static_cast<double>(bytes_);
    Json row = Json::object();
    row.set("operation", operation);
    row.set("workers", workers > 0 ? std::to_string(workers) : "");
    row.set("kibibytes", bytes_ / 1024);
    row.set("microseconds", result.b_seconds * 1e6);
    row.set("gigabytes_per_second", static_cast<double>(bytes) / result.b_seconds / 1e9);
    row.set("read_gigabytes_per_second", static_cast<double>(bytes_) / result.a_seconds / 1e9);
    row.set("share_of_read", result.ratio.median * factor);
    row.set("lower_quartile", result.ratio.lower_quartile * factor);
    row.set("upper_quartile", result.ratio.upper_quartile * factor);
    rows_.push_back(std::move(row));
  }

  Arguments arguments_;
  int64_t bytes_;
  std::unique_ptr<Backend> backend_;
  Stream& stream_;
  Tensor numbers_, words_, hyper_;
  volatile uint64_t sink_ = 0;
  Json::Array rows_;
};

Json::Array run(const Arguments& arguments) {
  const int64_t large = integer_option(arguments, "mebibytes", 1024, 1, 1 << 20) << 20;
  Json::Array rows;
  for (const int64_t bytes : {int64_t{256} << 10, large}) {
    SignKernelsTable table(arguments, bytes);
    table.run();
    for (Json& row : table.take()) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

uint64_t read_all(const uint64_t* words, int64_t count, int threads) {
  const bool wide = __builtin_cpu_supports("avx2") != 0;
  uint64_t total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(| : total)
  for (int part = 0; part < threads; ++part) {
    const int64_t first = count * part / threads, last = count * (part + 1) / threads;
    total |= wide ? read_wide(words + first, last - first) : read_narrow(words + first, last - first);
  }
  return total;
}

Benchmark sign_kernels_benchmark() {
  return {"sign-kernels",
          "Packing, voting, applying and unpacking of signs against the read bandwidth, in the L2 cache and beyond all caches",
          {{"mebibytes", "The large array (default 1024)"}},
          run};
}

}  // namespace dmuon::bench
