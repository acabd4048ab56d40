#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace dmuon::cpu {
namespace {

// Work that is worth waking threads for, and the ranges it is cut into: whole cache lines of words.
constexpr int64_t worthwhile_elements = 32768, worthwhile_words = 4096, range_words = 8, range_elements = 64 * range_words;

uint64_t* words_of(const Tensor& tensor) { return reinterpret_cast<uint64_t*>(tensor.data<int64_t>()); }

simd::SignPiece piece_of(const SignSegments& segments) { return {segments.first, segments.count, segments.row_length, segments.chunk}; }

std::vector<const uint64_t*> words_of(const std::vector<Tensor>& tensors) {
  std::vector<const uint64_t*> words;
  for (const Tensor& tensor : tensors) words.push_back(words_of(tensor));
  return words;
}

simd::SignInputs inputs_of(const std::vector<const uint64_t*>& words) { return {words.data(), static_cast<int64_t>(words.size())}; }

std::vector<Tensor> with(std::vector<Tensor> tensors, const Tensor& last) {
  tensors.push_back(last);
  return tensors;
}

// body(begin, end) for the two parts of the words [begin, end) of a buffer whose first `any_words` are headers.
template <class Any, class Vote>
void by_kind(int64_t any_words, int64_t begin, int64_t end, const Any& any, const Vote& vote) {
  const int64_t cut = std::clamp(any_words, begin, end);
  if (begin < cut) any(begin, cut);
  if (cut < end) vote(cut, end);
}

}  // namespace

void Signs::pack(Stream& stream, const PackSigns& p) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "pack_signs", 0, {p.in, p.words, p.header}, [=, &simd] {
    simd::PackSignsTask task;
    if (p.in.dtype() == DType::bfloat16)
      task.bfloat16 = reinterpret_cast<const uint16_t*>(p.in.data<bfloat16>());
    else
      task.float32 = reinterpret_cast<const uint32_t*>(p.in.data<float>());
    task.words = words_of(p.words), task.header = words_of(p.header);
    task.piece = piece_of(p.segments), task.key = p.key;
    std::fill_n(task.header, p.header.elements(), uint64_t{0});
    team.split(p.segments.count, range_elements, worthwhile_elements,
               [&](int, int64_t begin, int64_t end) { simd.pack_signs(task, begin, end, segment_of(p.segments, begin)); });
  });
}

void Signs::vote(Stream& stream, const VoteSigns& v) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "vote_signs", 0, with(v.inputs, v.result), [=, &simd] {
    std::vector<const uint64_t*> voters = words_of(v.inputs);
    const std::vector<const uint64_t*> all = voters;
    // An even number with its tie-breaker counted twice is odd and has the same majority. Of two, the tie-breaker decides.
    if (voters.size() % 2 == 0) voters.push_back(voters[static_cast<size_t>(v.tie_breaker)]);
    if (voters.size() == 3 && all.size() == 2) voters = {voters.back()};
    uint64_t* result = words_of(v.result);
    team.split(v.result.elements(), range_words, worthwhile_words, [&](int, int64_t begin, int64_t end) {
      by_kind(
          v.any_words, begin, end, [&](int64_t from, int64_t to) { simd.any_signs(inputs_of(all), result, from, to); },
          [&](int64_t from, int64_t to) { simd.vote_signs(inputs_of(voters), result, from, to); });
    });
  });
}

void Signs::count(Stream& stream, const CountSigns& c) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "count_signs", 0, with(c.inputs, c.planes), [=, &simd] {
    std::vector<const uint64_t*> inputs = words_of(c.inputs);
    if (c.twice >= 0) inputs.push_back(inputs[static_cast<size_t>(c.twice)]);
    const int64_t words = c.inputs[0].elements();
    const simd::SignPlanes planes{words_of(c.planes), words > 0 ? c.planes.elements() / words : 0, words};
    team.split(words, range_words, worthwhile_words,
               [&](int, int64_t begin, int64_t end) { simd.count_signs(inputs_of(inputs), planes, begin, end); });
  });
}

void Signs::vote_counts(Stream& stream, const VoteCounts& v) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "vote_counts", 0, with(v.planes, v.result), [=, &simd] {
    const int64_t words = v.result.elements();
    std::vector<simd::SignPlanes> nodes;
    std::vector<const uint64_t*> all;  // every plane of every node
    for (const Tensor& planes : v.planes) {
      nodes.push_back({words_of(planes), words > 0 ? planes.elements() / words : 0, words});
      for (int64_t j = 0; j < nodes.back().count; ++j) all.push_back(nodes.back().planes + j * words);
    }
    uint64_t* result = words_of(v.result);
    team.split(words, range_words, worthwhile_words, [&](int, int64_t begin, int64_t end) {
      by_kind(
          v.any_words, begin, end, [&](int64_t from, int64_t to) { simd.any_signs(inputs_of(all), result, from, to); },
          [&](int64_t from, int64_t to) {
            simd.vote_counts(nodes.data(), static_cast<int64_t>(nodes.size()), v.total_weight / 2 + 1, result, from, to);
          });
    });
  });
}

void Signs::expand(Stream& stream, const ExpandSigns& e) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "expand_signs", 0, {e.words, e.out}, [=, &simd] {
    const uint64_t* words = words_of(e.words);
    void* out = e.out.raw();
    const int64_t size = size_of(e.out.dtype());
    const auto weight = static_cast<int8_t>(e.weight), opposite = static_cast<int8_t>(-e.weight);
    team.split(e.words.elements(), range_words, worthwhile_words, [&](int, int64_t begin, int64_t end) {
      by_kind(
          e.any_words, begin, end, [&](int64_t from, int64_t to) { simd.expand_signs(words, out, size, 1, 0, from, to); },
          [&](int64_t from, int64_t to) { simd.expand_signs(words, out, size, weight, opposite, from, to); });
    });
  });
}

void Signs::threshold(Stream& stream, const ThresholdSigns& t) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "threshold_signs", 0, {t.in, t.words}, [=, &simd] {
    uint64_t* words = words_of(t.words);
    team.split(t.words.elements(), range_words, worthwhile_words,
               [&](int, int64_t begin, int64_t end) { simd.threshold_signs(t.in.raw(), size_of(t.in.dtype()), words, begin, end); });
  });
}

void Signs::apply(Stream& stream, const ApplySigns& a) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "apply_signs", 0, {a.parameter, a.words, a.header, a.hyper, a.published}, [=, &simd] {
    const double* h = a.hyper.data<double>();
    simd::ApplySignsTask task;
    task.parameter = a.parameter.data<float>(), task.words = words_of(a.words), task.header = words_of(a.header);
    task.piece = piece_of(a.segments);
    task.keep = static_cast<float>(1.0 - h[ApplySigns::learning_rate] * h[ApplySigns::weight_decay]);
    task.step = static_cast<float>(h[ApplySigns::learning_rate] * h[ApplySigns::scale]);
    task.published = published_of(a.published);
    team.split(a.segments.count, range_elements, worthwhile_elements,
               [&](int, int64_t begin, int64_t end) { simd.apply_signs(task, begin, end, segment_of(a.segments, begin)); });
  });
}

void Signs::unpack(Stream& stream, const UnpackSigns& u) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(stream, "unpack_signs", 0, {u.words, u.header, u.out}, [=, &simd] {
    const simd::UnpackSignsTask task{words_of(u.words), words_of(u.header), u.out.data<float>(), piece_of(u.segments)};
    team.split(u.segments.count, range_elements, worthwhile_elements,
               [&](int, int64_t begin, int64_t end) { simd.unpack_signs(task, begin, end, segment_of(u.segments, begin)); });
  });
}

}  // namespace dmuon::cpu
