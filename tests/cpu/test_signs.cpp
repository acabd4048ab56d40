// Signs on the CPU: the hash of zeros, segments against a walk over every element, exact arithmetic, and equal bits for any
// range, thread count, instruction set and stream.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "cpu/cpu_support.h"
#include "dmuon/backend/sign_segments.h"

using namespace dmuon;
using cpu_test::bits;

namespace {

std::vector<uint64_t> random_words(int64_t count, uint64_t seed) {
  const Random random(seed, RandomStream::test);
  std::vector<uint64_t> words(static_cast<size_t>(count));
  for (size_t i = 0; i < words.size(); ++i) words[i] = random.bits(i);
  return words;
}
Tensor words_tensor(Backend& backend, const std::vector<uint64_t>& values) {
  const Tensor words = backend.allocate({static_cast<int64_t>(values.size())}, DType::int64, MemoryCategory::workspace, "words");
  backend.copy_from_host(backend.compute_stream(), values.data(), words);
  return words;
}
Tensor words_tensor(Backend& backend, int64_t count) {
  return words_tensor(backend, std::vector<uint64_t>(static_cast<size_t>(count), ~uint64_t{0}));
}
std::vector<uint64_t> words_in(Backend& backend, const Tensor& tensor) {
  std::vector<uint64_t> words(static_cast<size_t>(tensor.elements()));
  backend.copy_to_host(backend.compute_stream(), tensor, words.data());
  return words;
}

// Share of draws in which `a` and `b` agree.
template <class A, class B>
double agreement(int64_t draws, const A& a, const B& b) {
  int64_t equal = 0;
  for (int64_t i = 0; i < draws; ++i) equal += a(i) == b(i) ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(draws);
}

constexpr int64_t draws = 40000;
constexpr double five_deviations = 5 * 0.5 / 200;  // of a share of 40 000 fair draws

}  // namespace

TEST_CASE("the sign of a zero is balanced and unrelated to its neighbours in every coordinate") {
  const auto one = [](int64_t) { return true; };
  const auto over_index = [](int64_t i) { return zero_sign(sign_key(1, 5, "a"), i); };
  const auto far_away = [](int64_t i) { return zero_sign(sign_key(1, 5, "a"), (int64_t{1} << 40) + i); };
  const auto over_rows = [](int64_t i) { return zero_sign(sign_key(1, 5, "a"), 768 * i); };
  const auto over_step = [](int64_t i) { return zero_sign(sign_key(1, i, "a"), 17); };
  const auto over_seed = [](int64_t i) { return zero_sign(sign_key(static_cast<uint64_t>(i), 5, "a"), 17); };
  const auto over_name = [](int64_t i) { return zero_sign(sign_key(1, 5, "block." + std::to_string(i)), 17); };
  using Draw = std::function<bool(int64_t)>;
  for (const Draw& draw : std::vector<Draw>{over_index, far_away, over_rows, over_step, over_seed, over_name}) {
    CHECK(agreement(draws, draw, one) == Approx(0.5).margin(five_deviations));
    for (const int64_t distance : {1, 2, 63, 64, 65, 768})
      CHECK(agreement(draws, draw, [&](int64_t i) { return draw(i + distance); }) == Approx(0.5).margin(five_deviations));
  }
  // The same element one step later, in another run and in another parameter.
  const auto later = [](int64_t i) { return zero_sign(sign_key(1, 6, "a"), i); };
  const auto other_seed = [](int64_t i) { return zero_sign(sign_key(2, 5, "a"), i); };
  const auto other_name = [](int64_t i) { return zero_sign(sign_key(1, 5, "b"), i); };
  for (const Draw& draw : std::vector<Draw>{later, other_seed, other_name, far_away})
    CHECK(agreement(draws, over_index, draw) == Approx(0.5).margin(five_deviations));
}

TEST_CASE("a zero's sign is a function of its index in the tensor, beyond 2^31 and wherever words begin") {
  const uint64_t key = sign_key(9, 2, "embedding");
  for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{63}, (int64_t{1} << 31) - 5, (int64_t{1} << 33) + 77, int64_t{1} << 52}) {
    const auto backend = cpu_test::make(1);
    const SignSegments piece{first, 200, 50, 16384};
    const Tensor in = cpu_test::tensor(*backend, {200}, std::vector<double>(200, 0.0));
    const Tensor words = words_tensor(*backend, sign_words(200)), header = words_tensor(*backend, sign_header_words(piece));
    backend->signs().pack(backend->compute_stream(), {in, words, header, piece, key});
    const std::vector<uint64_t> packed = words_in(*backend, words);
    int wrong = 0;
    for (int64_t i = 0; i < 200; ++i) {
      const bool expected = zero_sign(key, first + i);
      wrong += ((packed[static_cast<size_t>(i / 64)] >> (i % 64)) & 1) != (expected ? 1u : 0u) ? 1 : 0;
      wrong += ((zero_signs(key, (first + i) / 64) >> ((first + i) % 64)) & 1) != (expected ? 1u : 0u) ? 1 : 0;
    }
    CHECK(wrong == 0);
    for (const uint64_t word : words_in(*backend, header)) CHECK(word == 0);  // no segment has a non-zero element
  }
}

TEST_CASE("segments end at rows and at multiples of the chunk of the whole tensor") {
  for (const int64_t row_length :
       {int64_t{1}, int64_t{3}, int64_t{64}, int64_t{96}, int64_t{160}, int64_t{480}, std::numeric_limits<int64_t>::max()})
    for (const int64_t chunk : {int64_t{1}, int64_t{64}, int64_t{160}, int64_t{16384}})
      for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{479}, int64_t{480}, (int64_t{1} << 33) - 3, int64_t{1} << 60})
        for (const int64_t count : {1, 2, 64, 1000}) {
          const SignSegments piece{first, count, row_length, chunk};
          std::vector<int64_t> begins;
          for (int64_t i = 0; i < count; ++i)
            if (i == 0 || (first + i) % row_length == 0 || (first + i) % chunk == 0) begins.push_back(i);
          bool right = segments(piece) == static_cast<int64_t>(begins.size());
          for (int64_t i = 0; i < count; ++i) {
            const auto next = std::upper_bound(begins.begin(), begins.end(), i);
            right = right && segment_of(piece, i) == next - begins.begin() - 1;
            right = right && segment_end(piece, i) == (next == begins.end() ? count : *next);
          }
          INFO("first " << first << " count " << count << " rows of " << row_length << " chunk " << chunk);
          CHECK(right);
          CHECK(sign_header_words(piece) == (1 + static_cast<int64_t>(begins.size()) + 63) / 64);
        }
  const SignSegments empty{12, 0, 3, 16};
  CHECK(segments(empty) == 0);
  CHECK(sign_header_words(empty) == 0);
  CHECK(sign_words(0) == 0);
  CHECK(sign_words(64) == 1);
  CHECK(sign_words(65) == 2);
  CHECK(sign_count_planes(7) == 3);
  CHECK(sign_count_planes(8) == 4);
}

TEST_CASE("rows of a tensor: all but the first dimension of a matrix or convolution, everything of a vector") {
  const auto check = [](const Shape& shape, int64_t row_length, int64_t rows) {
    const SignSegments whole = sign_segments(shape, 0, shape.elements(), 16384);
    INFO(shape.to_string());
    CHECK(whole.row_length == row_length);
    CHECK(segments(whole) == rows);
  };
  check({5, 7}, 7, 5);
  check({4, 3, 2, 5}, 30, 4);
  check({4, 1, 1, 1}, 1, 4);
  check({33}, 33, 1);
  check({}, 1, 1);
  check({0, 3}, 1, 0);
  check({3, 0}, 1, 0);
  const SignSegments piece = sign_segments({4, 3, 2, 5}, 40, 50, 64);  // ends at 60 and 64 inside
  CHECK(piece.first == 40);
  CHECK(piece.count == 50);
  CHECK(piece.chunk == 64);
  CHECK(segments(piece) == 3);
}

TEST_CASE("applied signs are exactly p * keep - step, and only the decay where a segment is zero") {
  constexpr int64_t count = 70001;
  const SignSegments piece{100, count, 96, 16384};
  const std::vector<double> values = cpu_test::random_values(count, 4);
  const std::vector<uint64_t> signs = random_words(sign_words(count), 5), headers = random_words(sign_header_words(piece), 6);
  const float keep = static_cast<float>(1.0 - 0.02 * 0.1), step = static_cast<float>(0.02 * 1.7);
  std::vector<uint32_t> expected;
  for (int64_t i = 0, segment = 0; i < count; ++i) {
    if (i > 0 && ((100 + i) % 96 == 0 || (100 + i) % 16384 == 0)) ++segment;
    const bool set = ((signs[static_cast<size_t>(i / 64)] >> (i % 64)) & 1) != 0;
    const bool active = ((headers[static_cast<size_t>((1 + segment) / 64)] >> ((1 + segment) % 64)) & 1) != 0;
    const float decayed = static_cast<float>(values[static_cast<size_t>(i)]) * keep;
    expected.push_back(std::bit_cast<uint32_t>(!active ? decayed : set ? decayed - step : decayed + step));
  }
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const int threads : {1, 2, 3})
      for (const bool publish : {false, true}) {
        INFO(instruction_set << " threads " << threads << " published " << publish);
        const auto backend = cpu_test::make(threads, instruction_set);
        const Tensor parameter = cpu_test::tensor(*backend, {count}, values);
        const Tensor published = publish ? cpu_test::unset(*backend, {count}) : Tensor();
        const Tensor hyper = cpu_test::tensor(*backend, {3}, {0.02, 0.1, 1.7}, DType::float64);
        backend->signs().apply(backend->compute_stream(),
                               {parameter, words_tensor(*backend, signs), words_tensor(*backend, headers), piece, hyper, published});
        CHECK(bits(*backend, parameter) == expected);
        if (publish) CHECK(bits(*backend, published) == expected);
      }
}

TEST_CASE("signs of bfloat16 are those of the same numbers in float32, special ones included") {
  const auto backend = cpu_test::make(1);
  std::vector<double> values = cpu_test::random_values(4097, 8);
  const double special[] = {0.0, -0.0, 0x1p-133, -0x1p-133, 3e38, -3e38, std::nan(""), std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 5 == 0) values[i] = special[i / 5 % std::size(special)];
    values[i] = static_cast<float>(bfloat16(static_cast<float>(values[i])));
  }
  const SignSegments piece{0, 4097, 65, 16384};
  const auto packed = [&](DType dtype) {
    const Tensor words = words_tensor(*backend, sign_words(4097)), header = words_tensor(*backend, sign_header_words(piece));
    backend->signs().pack(backend->compute_stream(), {cpu_test::tensor(*backend, {4097}, values, dtype), words, header, piece, 3});
    return std::pair{words_in(*backend, words), words_in(*backend, header)};
  };
  CHECK(packed(DType::float32) == packed(DType::bfloat16));
  CHECK((packed(DType::float32).second[0] & 1) == 1);  // the non-numbers were seen
}

TEST_CASE("numbers whose products overflow are numbers, whatever stands beside them") {
  constexpr int64_t count = 5000;
  const SignSegments piece{64 * 7 + 5, count, 300, 16384};
  std::vector<double> values = cpu_test::random_values(count, 12);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0) values[i] = i % 2 == 0 ? 0.0 : -0.0;
    if (i % 50 == 1) values[i] = i % 4 == 1 ? 3e38 : -3e38;
  }
  const uint64_t key = sign_key(9, 2, "embedding");
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const bool non_number : {false, true}) {
      INFO(instruction_set << " non-number " << non_number);
      if (non_number) values[4321] = std::nan("");
      const auto backend = cpu_test::make(1, instruction_set);
      const Tensor words = words_tensor(*backend, sign_words(count)), header = words_tensor(*backend, sign_header_words(piece));
      backend->signs().pack(backend->compute_stream(), {cpu_test::tensor(*backend, {count}, values), words, header, piece, key});
      const std::vector<uint64_t> packed = words_in(*backend, words);
      int wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double x = values[static_cast<size_t>(i)];
        const bool expected = x > 0 || (x == 0 && zero_sign(key, piece.first + i));
        wrong += ((packed[static_cast<size_t>(i / 64)] >> (i % 64)) & 1) != (expected ? 1u : 0u) ? 1 : 0;
      }
      CHECK(wrong == 0);
      CHECK((words_in(*backend, header)[0] & 1) == (non_number ? 1u : 0u));
      values[4321] = 1.0;
    }
}

TEST_CASE("kernels of signs have equal bits on any number of threads, instruction set and stream") {
  constexpr int64_t count = 200001;
  const SignSegments piece{77, count, 300, 16384};
  std::vector<double> values = cpu_test::random_values(count, 9);
  for (size_t i = 0; i < values.size(); ++i)
    if (i % 7 == 0 || (i / 300) % 4 == 0) values[i] = 0.0;
  std::vector<std::vector<uint64_t>> expected;
  for (const std::string& instruction_set : cpu::supported_instruction_sets())
    for (const int threads : {1, 2, 3})
      for (const bool worker : {false, true}) {
        INFO(instruction_set << " threads " << threads << " on a communication stream " << worker);
        const auto backend = cpu_test::make(threads, instruction_set);
        const std::unique_ptr<Stream> own = worker ? backend->make_communication_stream("signs") : nullptr;
        Stream& stream = worker ? *own : backend->compute_stream();
        const Tensor words = words_tensor(*backend, sign_words(count)), header = words_tensor(*backend, sign_header_words(piece));
        const Tensor result = words_tensor(*backend, words.elements()), flat = words_tensor(*backend, words.elements());
        const Tensor planes = words_tensor(*backend, 3 * words.elements());
        const Tensor numbers = cpu_test::tensor(*backend, {count}, values), out = cpu_test::unset(*backend, {count});
        const Tensor integers = backend->allocate({64 * words.elements()}, DType::int8, MemoryCategory::workspace, "integers");
        const Tensor thresholds = words_tensor(*backend, words.elements());
        std::vector<Tensor> inputs = {words};
        for (uint64_t i = 0; i < 4; ++i) inputs.push_back(words_tensor(*backend, random_words(words.elements(), 30 + i)));
        SignKernels& signs = backend->signs();
        signs.pack(stream, {numbers, words, header, piece, 5});
        signs.vote(stream, {inputs, flat, 10, 0});
        signs.count(stream, {inputs, planes, -1});
        signs.vote_counts(stream, {{planes}, result, 10, 5});
        signs.expand(stream, {flat, integers, 10, 2});
        signs.threshold(stream, {integers, thresholds});
        signs.unpack(stream, {flat, header, out, piece});
        stream.synchronize();
        CHECK(words_in(*backend, result) == words_in(*backend, flat));
        CHECK(words_in(*backend, thresholds) == words_in(*backend, flat));
        std::vector<uint64_t> signs_as_numbers;
        for (const uint32_t word : bits(*backend, out)) signs_as_numbers.push_back(word);
        const std::vector<std::vector<uint64_t>> found = {words_in(*backend, words), words_in(*backend, header), words_in(*backend, flat),
                                                          words_in(*backend, planes), signs_as_numbers};
        if (expected.empty()) expected = found;
        CHECK(found == expected);
      }
}

TEST_CASE("a majority of many workers is that of its count") {
  const auto backend = cpu_test::make(1);
  for (const int workers : {127, 128, 255, 256, 1000, 1001}) {
    // Element e of the only word is set by the first workers / 2 - 31 + e of them: the vote turns in its middle.
    std::vector<Tensor> inputs;
    for (int worker = 0; worker < workers; ++worker) {
      uint64_t word = 0;
      for (int e = 0; e < 64; ++e)
        if (worker < workers / 2 - 31 + e) word |= uint64_t{1} << e;
      inputs.push_back(words_tensor(*backend, std::vector<uint64_t>{word}));
    }
    for (const int tie_breaker : {0, workers - 1}) {
      const Tensor result = words_tensor(*backend, 1);
      backend->signs().vote(backend->compute_stream(), {inputs, result, 0, tie_breaker});
      // Elements 32 and on have a majority. Element 31 has half of an even number, and the tie-breaker 0 is for it.
      const bool tie_won = workers % 2 == 0 && tie_breaker == 0;
      INFO(workers << " workers, tie-breaker " << tie_breaker);
      CHECK(words_in(*backend, result)[0] == ~uint64_t{0} << (tie_won ? 31 : 32));
    }
  }
}
