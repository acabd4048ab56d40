// One element and one bit at a time, in the words of sign_kernels.h.
#include <cmath>

#include "backend/convert.h"
#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

bool bit(const Tensor& words, int64_t i) { return ((static_cast<uint64_t>(words.data<int64_t>()[i / 64]) >> (i % 64)) & 1) != 0; }

void set_bit(const Tensor& words, int64_t i, bool value) {
  uint64_t word = static_cast<uint64_t>(words.data<int64_t>()[i / 64]);
  word = (word & ~(uint64_t{1} << (i % 64))) | (static_cast<uint64_t>(value) << (i % 64));
  words.data<int64_t>()[i / 64] = static_cast<int64_t>(word);
}

void clear(const Tensor& words) {
  for (int64_t i = 0; i < words.elements(); ++i) words.data<int64_t>()[i] = 0;
}

// Whether element `i` of a piece begins a segment.
bool begins_segment(const SignSegments& piece, int64_t i) {
  const int64_t index = piece.first + i;
  return i == 0 || index % piece.row_length == 0 || index % piece.chunk == 0;
}

// The sign of every element of a piece: +1, -1, or 0 in segments without a non-zero element. body(i, sign)
template <class Body>
void for_signs(const SignSegments& piece, const Tensor& words, const Tensor& header, const Body& body) {
  int64_t segment = -1;
  for (int64_t i = 0; i < piece.count; ++i) {
    if (begins_segment(piece, i)) ++segment;
    body(i, !bit(header, 1 + segment) ? 0.0 : bit(words, i) ? 1.0 : -1.0);
  }
}

double integer(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::int8:
      return tensor.data<int8_t>()[i];
    case DType::int16:
      return tensor.data<int16_t>()[i];
    default:
      return tensor.data<int32_t>()[i];
  }
}

void set_integer(const Tensor& tensor, int64_t i, int value) {
  switch (tensor.dtype()) {
    case DType::int8:
      tensor.data<int8_t>()[i] = static_cast<int8_t>(value);
      break;
    case DType::int16:
      tensor.data<int16_t>()[i] = static_cast<int16_t>(value);
      break;
    default:
      tensor.data<int32_t>()[i] = value;
  }
}

}  // namespace

void Signs::pack(Stream& stream, const PackSigns& p) {
  host_.launch(stream, "pack_signs", 0, {p.in, p.words, p.header}, [p] {
    clear(p.words);
    clear(p.header);
    with_floating_type(p.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = p.in.data<T>();
      int64_t segment = -1;
      for (int64_t i = 0; i < p.segments.count; ++i) {
        const double x = widen(in[i]);
        if (begins_segment(p.segments, i)) ++segment;
        set_bit(p.words, i, x > 0 || (x == 0 && zero_sign(p.key, p.segments.first + i)));
        if (!std::isfinite(x)) set_bit(p.header, 0, true);
        if (x != 0) set_bit(p.header, 1 + segment, true);
      }
    });
  });
}

void Signs::vote(Stream& stream, const VoteSigns& v) {
  std::vector<Tensor> tensors = v.inputs;
  tensors.push_back(v.result);
  host_.launch(stream, "vote_signs", 0, std::move(tensors), [v] {
    for (int64_t i = 0; i < 64 * v.result.elements(); ++i) {
      int64_t ones = 0;
      for (const Tensor& input : v.inputs) ones += bit(input, i) ? 1 : 0;
      const int64_t zeros = static_cast<int64_t>(v.inputs.size()) - ones;
      const bool winner = ones == zeros ? bit(v.inputs[static_cast<size_t>(v.tie_breaker)], i) : ones > zeros;
      set_bit(v.result, i, i < 64 * v.any_words ? ones > 0 : winner);
    }
  });
}

void Signs::count(Stream& stream, const CountSigns& c) {
  std::vector<Tensor> tensors = c.inputs;
  tensors.push_back(c.planes);
  host_.launch(stream, "count_signs", 0, std::move(tensors), [c] {
    const int64_t words = c.inputs[0].elements(), planes = words > 0 ? c.planes.elements() / words : 0;
    for (int64_t i = 0; i < 64 * words; ++i) {
      int64_t ones = 0;
      for (size_t worker = 0; worker < c.inputs.size(); ++worker)
        if (bit(c.inputs[worker], i)) ones += static_cast<int>(worker) == c.twice ? 2 : 1;
      for (int64_t plane = 0; plane < planes; ++plane) set_bit(c.planes, 64 * plane * words + i, ((ones >> plane) & 1) != 0);
    }
  });
}

void Signs::vote_counts(Stream& stream, const VoteCounts& v) {
  std::vector<Tensor> tensors = v.planes;
  tensors.push_back(v.result);
  host_.launch(stream, "vote_counts", 0, std::move(tensors), [v] {
    const int64_t words = v.result.elements();
    for (int64_t i = 0; i < 64 * words; ++i) {
      int64_t ones = 0;
      for (const Tensor& node : v.planes)
        for (int64_t plane = 0; plane < node.elements() / words; ++plane)
          ones += bit(node, 64 * plane * words + i) ? int64_t{1} << plane : 0;
      set_bit(v.result, i, i < 64 * v.any_words ? ones > 0 : 2 * ones > v.total_weight);
    }
  });
}

void Signs::expand(Stream& stream, const ExpandSigns& e) {
  host_.launch(stream, "expand_signs", 0, {e.words, e.out}, [e] {
    for (int64_t i = 0; i < e.out.elements(); ++i) {
      const bool set = bit(e.words, i), any = i < 64 * e.any_words;
      set_integer(e.out, i, any ? (set ? 1 : 0) : (set ? e.weight : -e.weight));
    }
  });
}

void Signs::threshold(Stream& stream, const ThresholdSigns& t) {
  host_.launch(stream, "threshold_signs", 0, {t.in, t.words}, [t] {
    for (int64_t i = 0; i < t.in.elements(); ++i) set_bit(t.words, i, integer(t.in, i) > 0);
  });
}

void Signs::apply(Stream& stream, const ApplySigns& a) {
  host_.launch(stream, "apply_signs", 0, {a.parameter, a.words, a.header, a.hyper, a.published}, [a] {
    const double* hyper = a.hyper.data<double>();
    const double keep = 1.0 - hyper[ApplySigns::learning_rate] * hyper[ApplySigns::weight_decay];
    const double step = hyper[ApplySigns::learning_rate] * hyper[ApplySigns::scale];
    with_type(a.parameter, [&](auto zero) {
      using T = decltype(zero);
      T* parameter = a.parameter.data<T>();
      for_signs(a.segments, a.words, a.header,
                [&](int64_t i, double sign) { parameter[i] = static_cast<T>(parameter[i] * keep - step * sign); });
    });
    if (a.published.defined())
      convert_elements(a.parameter.raw(), a.parameter.dtype(), a.published.raw(), a.published.dtype(), a.parameter.elements());
  });
}

void Signs::unpack(Stream& stream, const UnpackSigns& u) {
  host_.launch(stream, "unpack_signs", 0, {u.words, u.header, u.out}, [u] {
    with_type(u.out, [&](auto zero) {
      using T = decltype(zero);
      for_signs(u.segments, u.words, u.header, [&](int64_t i, double sign) { u.out.data<T>()[i] = static_cast<T>(sign); });
    });
  });
}

}  // namespace dmuon::reference
