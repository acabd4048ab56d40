#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/kernel_flops.h"
#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

// Sizes and places of one attention problem: queries [B, T, H, D], keys and values [B, S, G, D].
struct Layout {
  explicit Layout(const AttentionForward& f)
      : B(f.query.size(0)),
        T(f.query.size(1)),
        H(f.query.size(2)),
        D(f.query.size(3)),
        S(f.key.size(1)),
        G(f.key.size(2)),
        causal(f.causal),
        offsets(f.key_offsets.empty() ? std::vector<int64_t>(static_cast<size_t>(f.query.size(0)), f.key_offset) : f.key_offsets),
        own_offsets(!f.key_offsets.empty()) {}

  int64_t query_at(int64_t b, int64_t t, int64_t h) const { return ((b * T + t) * H + h) * D; }
  int64_t key_at(int64_t b, int64_t s, int64_t h) const { return ((b * S + s) * G + h / (H / G)) * D; }
  int64_t offset(int64_t b) const { return offsets[static_cast<size_t>(b)]; }
  int64_t visible(int64_t b, int64_t t) const {
    if (causal) return offset(b) + t + 1;
    return own_offsets ? offset(b) + T : S;
  }
  int64_t mask_element(int64_t h, int64_t t, int64_t s) const { return (h * T + t) * S + s; }

  int64_t B, T, H, D, S, G;
  bool causal;
  std::vector<int64_t> offsets;
  bool own_offsets;
};

template <class T>
double dot(const T* a, const T* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

template <class T>
void store(const std::vector<double>& values, T* out) {
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<T>(values[i]);
}

// The new keys or values of every sequence behind those that it holds.
template <class T>
void append(const Layout& at, const Tensor& fresh, const Tensor& store) {
  const int64_t row = at.G * at.D;
  for (int64_t b = 0; b < at.B; ++b)
    std::copy_n(fresh.data<T>() + b * at.T * row, at.T * row, store.data<T>() + (b * at.S + at.offset(b)) * row);
}

// scores_s = scale * q . k_s, p = softmax(scores), output = sum_s dropout(p_s) v_s
template <class T>
void attend(const AttentionForward& f) {
  const Layout at(f);
  if (f.new_key.defined()) append<T>(at, f.new_key, f.key), append<T>(at, f.new_value, f.value);
  const T* query = f.query.data<T>();
  const T* key = f.key.data<T>();
  const T* value = f.value.data<T>();
  T* output = f.output.data<T>();
  Wide<T>* log_sum_exp = optional_data<Wide<T>>(f.log_sum_exp);
  const DropoutFactor factor(f.dropout, at.B * at.H * at.T * at.S);
  std::vector<double> scores(static_cast<size_t>(at.S)), row(static_cast<size_t>(at.D));
  for (int64_t b = 0; b < at.B; ++b)
    for (int64_t h = 0; h < at.H; ++h)
      for (int64_t t = 0; t < at.T; ++t) {
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t s = 0; s < at.visible(b, t); ++s) {
          scores[static_cast<size_t>(s)] = f.scale * dot(query + at.query_at(b, t, h), key + at.key_at(b, s, h), at.D);
          largest = std::max(largest, scores[static_cast<size_t>(s)]);
        }
        double total = 0;
        for (int64_t s = 0; s < at.visible(b, t); ++s) total += std::exp(scores[static_cast<size_t>(s)] - largest);
        const double lse = largest + std::log(total);
        if (log_sum_exp) log_sum_exp[(b * at.H + h) * at.T + t] = static_cast<Wide<T>>(lse);

        std::fill(row.begin(), row.end(), 0.0);
        for (int64_t s = 0; s < at.visible(b, t); ++s) {
          const double weight = std::exp(scores[static_cast<size_t>(s)] - lse) * factor.at(b, at.mask_element(h, t, s));
          for (int64_t d = 0; d < at.D; ++d) row[static_cast<size_t>(d)] += weight * value[at.key_at(b, s, h) + d];
        }
        store(row, output + at.query_at(b, t, h));
      }
}

// With p the probabilities and p' = dropout(p):  dv_s = sum_t p'_ts do_t,  dp'_ts = do_t . v_s,
// dscore_ts = p_ts (dp_ts - sum_s p_ts dp_ts),  dq_t = scale sum_s dscore_ts k_s,  dk_s = scale sum_t dscore_ts q_t.
// The inner sum equals do_t . o_t.
template <class T>
void attend_backward(const AttentionBackward& a) {
  const AttentionForward& f = a.forward;
  const Layout at(f);
  const T* query = f.query.data<T>();
  const T* key = f.key.data<T>();
  const T* value = f.value.data<T>();
  const T* output = f.output.data<T>();
  const Wide<T>* log_sum_exp = f.log_sum_exp.data<Wide<T>>();
  const T* d_output = a.d_output.data<T>();
  const DropoutFactor factor(f.dropout, at.B * at.H * at.T * at.S);
  std::vector<double> d_query(static_cast<size_t>(f.query.elements()), 0.0);
  std::vector<double> d_key(static_cast<size_t>(f.key.elements()), 0.0), d_value(d_key);
  for (int64_t b = 0; b < at.B; ++b)
    for (int64_t h = 0; h < at.H; ++h)
      for (int64_t t = 0; t < at.T; ++t) {
        const int64_t q = at.query_at(b, t, h);
        const double inner = dot(d_output + q, output + q, at.D);
        for (int64_t s = 0; s < at.visible(b, t); ++s) {
          const int64_t k = at.key_at(b, s, h);
          const double probability = std::exp(f.scale * dot(query + q, key + k, at.D) - log_sum_exp[(b * at.H + h) * at.T + t]);
          const double mask = factor.at(b, at.mask_element(h, t, s));
          const double d_score = probability * (mask * dot(d_output + q, value + k, at.D) - inner);
          for (int64_t d = 0; d < at.D; ++d) {
            d_value[static_cast<size_t>(k + d)] += mask * probability * d_output[q + d];
            d_query[static_cast<size_t>(q + d)] += f.scale * d_score * key[k + d];
            d_key[static_cast<size_t>(k + d)] += f.scale * d_score * query[q + d];
          }
        }
      }
  store(d_query, a.d_query.data<T>());
  store(d_key, a.d_key.data<T>());
  store(d_value, a.d_value.data<T>());
}

}  // namespace

void Attention::forward(Stream& stream, const AttentionForward& f) {
  host_.launch(stream, "attention_forward", flops_of(f), {f.query, f.key, f.value, f.output, f.log_sum_exp, f.new_key, f.new_value},
               [f] { with_model_type(f.query, [&](auto zero) { attend<decltype(zero)>(f); }); });
}

void Attention::backward(Stream& stream, const AttentionBackward& a) {
  const AttentionForward& f = a.forward;
  host_.launch(stream, "attention_backward", flops_of(a),
               {f.query, f.key, f.value, f.output, f.log_sum_exp, a.d_output, a.d_query, a.d_key, a.d_value},
               [a] { with_model_type(a.d_output, [&](auto zero) { attend_backward<decltype(zero)>(a); }); });
}

}  // namespace dmuon::reference
