// Signs, votes and headers agree with the reference in every bit; only the arithmetic of applying them is rounded.
#include <cmath>
#include <limits>

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

constexpr Tolerance exact{.epsilon = 0};

// Words as int32 halves, which doubles hold exactly.
Twin halves(const Twin& words) {
  const auto view = [](const Tensor& t) { return Tensor(t.storage(), t.offset(), Shape{2 * t.elements()}, DType::int32); };
  return {view(words.tested), view(words.reference)};
}

Twin words_output(Comparison& compare, int64_t words) { return compare.typed_output({words}, DType::int64); }

Twin words_of(Comparison& compare, const std::vector<uint64_t>& values) {
  const Twin words = words_output(compare, static_cast<int64_t>(values.size()));
  compare.on_both([&](Backend& backend, auto pick) { backend.copy_from_host(backend.compute_stream(), values.data(), pick(words)); });
  return words;
}

std::vector<uint64_t> random_words(int64_t count, uint64_t seed) {
  const Random random(seed, RandomStream::test);
  std::vector<uint64_t> words(static_cast<size_t>(count));
  for (size_t i = 0; i < words.size(); ++i) words[i] = random.bits(i);
  return words;
}

enum class Content : uint8_t { normal, zeros, special };

// A message: normal numbers; or many zeros of both signs and whole zero segments; or also denormals and non-numbers.
std::vector<double> message(const SignSegments& piece, Content content) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Random random(static_cast<uint64_t>(piece.first + piece.count), RandomStream::test);
  std::vector<double> values(static_cast<size_t>(piece.count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t draw = random.below(8, i, 1);
    const int64_t row = (piece.first + static_cast<int64_t>(i)) / piece.row_length;
    values[i] = static_cast<float>(random.normal(i));
    if (content == Content::normal) continue;
    if (draw < 2 || row % 3 == 1) values[i] = draw % 2 == 0 ? 0.0 : -0.0;
    if (content == Content::zeros) continue;
    if (draw == 5) values[i] = random.below(2, i, 2) == 0 ? 0x1p-133 : -0x1p-133;  // also a denormal of bfloat16
    if (random.below(97, i, 3) == 0) {
      const double special[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()};
      values[i] = special[random.below(4, i, 4)];
    }
  }
  return values;
}

std::string name_of(const SignSegments& piece) {
  return text(piece.first, "+", piece.count, " rows of ", piece.row_length, " chunk ", piece.chunk);
}

void pack(Comparison& compare, const SignSegments& piece, DType dtype, Content content) {
  compare.start(text("pack_signs, ", name_of(piece), " ", dmuon::name_of(dtype), " content ", static_cast<int>(content)));
  const Twin in = compare.typed_output({piece.count}, dtype);
  const std::vector<double> values = message(piece, content);
  const Twin words = words_output(compare, sign_words(piece.count)), header = words_output(compare, sign_header_words(piece));
  compare.on_both([&](Backend& backend, auto pick) {
    from_doubles(backend, values, pick(in));
    backend.signs().pack(backend.compute_stream(), {pick(in), pick(words), pick(header), piece, sign_key(3, 7, "a weight")});
  });
  compare.check("words", halves(words), exact);
  compare.check("header", halves(header), exact);
}

void apply_and_unpack(Comparison& compare, const SignSegments& piece, DType published_dtype, double weight_decay) {
  const std::string sizes = text(name_of(piece), " copy ", dmuon::name_of(published_dtype), " decay ", weight_decay);
  compare.start(text("apply_signs, ", sizes));
  const Twin words = words_of(compare, random_words(sign_words(piece.count), 11));
  const Twin header = words_of(compare, random_words(sign_header_words(piece), 12));
  const Twin parameter = compare.normal({piece.count}), published = compare.typed_output({piece.count}, published_dtype);
  const Twin hyper = compare.doubles({0.02, weight_decay, 1.7});
  compare.on_both([&](Backend& backend, auto pick) {
    backend.signs().apply(backend.compute_stream(), {pick(parameter), pick(words), pick(header), piece, pick(hyper), pick(published)});
  });
  compare.check("parameter", parameter);
  const Twin converted = compare.typed_output({piece.count}, published_dtype);
  compare.tested().optimizer().convert(compare.tested().compute_stream(), {parameter.tested, converted.tested});
  compare.check_same_bits("published and converted", published.tested, converted.tested);

  compare.start(text("unpack_signs, ", sizes));
  const Twin out = compare.output({piece.count});
  compare.on_both([&](Backend& backend, auto pick) {
    backend.signs().unpack(backend.compute_stream(), {pick(words), pick(header), pick(out), piece});
  });
  compare.check("out", out, exact);
}

enum class Ballot : uint8_t { random, unanimous, even };  // even: half of the workers oppose the other half in every bit

std::vector<Twin> ballots(Comparison& compare, int64_t words, int workers, Ballot ballot) {
  std::vector<Twin> inputs;
  for (int worker = 0; worker < workers; ++worker) {
    std::vector<uint64_t> values = random_words(words, static_cast<uint64_t>(ballot == Ballot::random ? 100 + worker : 100));
    if (ballot == Ballot::even && worker % 2 == 1)
      for (uint64_t& value : values) value = ~value;
    inputs.push_back(words_of(compare, values));
  }
  return inputs;
}

template <class Pick>
std::vector<Tensor> picked(const std::vector<Twin>& twins, const Pick& pick) {
  std::vector<Tensor> tensors;
  for (const Twin& twin : twins) tensors.push_back(pick(twin));
  return tensors;
}

void vote(Comparison& compare, int64_t words, int workers, Ballot ballot, int64_t any_words, int tie_breaker, bool alias = false) {
  compare.start(text("vote_signs, ", words, " words ", any_words, " any, workers ", workers, " ballot ", static_cast<int>(ballot), " tie ",
                     tie_breaker, alias ? " in place" : ""));
  const std::vector<Twin> inputs = ballots(compare, words, workers, ballot);
  const Twin result = alias ? inputs.back() : words_output(compare, words);
  compare.on_both([&](Backend& backend, auto pick) {
    backend.signs().vote(backend.compute_stream(), {picked(inputs, pick), pick(result), any_words, tie_breaker});
  });
  compare.check("result", halves(result), exact);
}

// The workers on several nodes, one of them counted twice: the counts, and that the vote over them is the flat one.
void count(Comparison& compare, int64_t words, int workers, int nodes, Ballot ballot, int64_t any_words, int tie_breaker) {
  compare.start(text("count_signs, ", words, " words, workers ", workers, " nodes ", nodes, " ballot ", static_cast<int>(ballot), " tie ",
                     tie_breaker));
  const std::vector<Twin> inputs = ballots(compare, words, workers, ballot);
  const bool even = workers % 2 == 0;
  std::vector<Twin> planes;
  for (int node = 0; node < nodes; ++node) {
    const int first = workers * node / nodes, last = workers * (node + 1) / nodes;
    const int twice = even && tie_breaker >= first && tie_breaker < last ? tie_breaker - first : -1;
    planes.push_back(words_output(compare, words * (sign_count_planes(last - first + 1) + node % 2)));  // some with a plane too many
    compare.on_both([&](Backend& backend, auto pick) {
      CountSigns arguments;
      arguments.inputs = picked({inputs.begin() + first, inputs.begin() + last}, pick);
      arguments.planes = pick(planes.back());
      arguments.twice = twice;
      backend.signs().count(backend.compute_stream(), arguments);
    });
    compare.check(node == 0 ? "planes of node 0" : text("planes of node ", node).c_str(), halves(planes.back()), exact);
  }
  const Twin result = words_output(compare, words), flat = words_output(compare, words);
  compare.on_both([&](Backend& backend, auto pick) {
    backend.signs().vote_counts(backend.compute_stream(), {picked(planes, pick), pick(result), any_words, workers + (even ? 1 : 0)});
    backend.signs().vote(backend.compute_stream(), {picked(inputs, pick), pick(flat), any_words, tie_breaker});
  });
  compare.check("vote over counts", halves(result), exact);
  compare.check_same_bits("vote over counts and flat vote", result.tested, flat.tested);
}

void expand(Comparison& compare, int64_t words, int64_t any_words, int weight, DType dtype) {
  compare.start(text("expand_signs, ", words, " words ", any_words, " any, weight ", weight, ", ", dmuon::name_of(dtype)));
  const Twin in = words_of(compare, random_words(words, 21)), out = compare.typed_output({64 * words}, dtype);
  compare.on_both([&](Backend& backend, auto pick) {
    backend.signs().expand(backend.compute_stream(), {pick(in), pick(out), any_words, weight});
  });
  compare.check("out", out, exact);
}

void threshold(Comparison& compare, int64_t words, DType dtype) {
  compare.start(text("threshold_signs, ", words, " words ", dmuon::name_of(dtype)));
  const Random random(22, RandomStream::test);
  const double largest = dtype == DType::int8 ? 127 : dtype == DType::int16 ? 32767 : 2147483647;
  const double values_at[] = {0, 1, -1, 2, -2, largest, -largest, -largest - 1, 64, -100};
  std::vector<double> values(static_cast<size_t>(64 * words));
  for (size_t i = 0; i < values.size(); ++i) values[i] = values_at[random.below(std::size(values_at), i)];
  const Twin in = compare.typed_output({64 * words}, dtype), out = words_output(compare, words);
  compare.on_both([&](Backend& backend, auto pick) {
    from_doubles(backend, values, pick(in));
    backend.signs().threshold(backend.compute_stream(), {pick(in), pick(out)});
  });
  compare.check("words", halves(out), exact);
}

void pieces(Comparison& compare) {
  for (const int64_t count : {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 127, 4097})
    for (const int64_t row_length : {int64_t{1}, int64_t{3}, int64_t{33}, int64_t{65}, int64_t{96}, int64_t{1} << 40})
      for (const int64_t first : {int64_t{0}, int64_t{100}, (int64_t{1} << 33) + 77}) {
        const SignSegments piece{first, count, row_length, 160};
        for (const Content content : {Content::normal, Content::zeros, Content::special}) {
          pack(compare, piece, DType::float32, content);
          pack(compare, piece, DType::bfloat16, content);
        }
        apply_and_unpack(compare, piece, first == 0 ? DType::float32 : DType::bfloat16, row_length == 3 ? 0.0 : 0.1);
      }
  // Enough work for several threads, cut in the middle of words, rows and chunks.
  for (const int64_t row_length : {1, 33, 96, 1000, 70001}) {
    const SignSegments piece{12345, 70001, row_length, 16384};
    for (const Content content : {Content::normal, Content::zeros, Content::special}) pack(compare, piece, DType::float32, content);
    apply_and_unpack(compare, piece, DType::bfloat16, 0.1);
  }
}

}  // namespace

OutputBits compare_sign_kernels(Backend& tested, Backend& reference) {
  Comparison compare(tested, reference);
  pieces(compare);
  for (int workers = 1; workers <= 17; ++workers) {
    for (int tie_breaker = 0; tie_breaker < workers; ++tie_breaker) vote(compare, 5, workers, Ballot::even, 1, tie_breaker);
    for (const int64_t words : {1, 3, 8, 67}) vote(compare, words, workers, Ballot::random, words / 4, workers / 2);
    vote(compare, 9, workers, Ballot::random, 2, 0, true);
    for (const int nodes : {1, 2, 3})
      if (nodes <= workers) count(compare, 67, workers, nodes, Ballot::random, 2, workers - 1);
    for (int tie_breaker = 0; tie_breaker < workers; tie_breaker += 3) count(compare, 3, workers, 1, Ballot::even, 0, tie_breaker);
  }
  for (const int workers : {127, 128, 255, 256})
    for (const Ballot ballot : {Ballot::random, Ballot::unanimous, Ballot::even}) {
      vote(compare, 3, workers, ballot, 1, workers - 2);
      count(compare, 3, workers, 2, ballot, 1, workers - 2);
    }
  vote(compare, 0, 4, Ballot::random, 0, 0);
  for (const int workers : {3, 8, 20}) vote(compare, 4500, workers, Ballot::random, 4100, 1);  // for several threads
  for (const int64_t words : {0, 1, 9, 4500})
    for (const int weight : {1, 2, 127})
      for (const DType dtype : {DType::int8, DType::int16, DType::int32}) expand(compare, words, words / 2, weight, dtype);
  for (const int64_t words : {0, 1, 9, 4500})
    for (const DType dtype : {DType::int8, DType::int16, DType::int32}) threshold(compare, words, dtype);
  return std::move(compare).bits();
}

}  // namespace kernel_suite
