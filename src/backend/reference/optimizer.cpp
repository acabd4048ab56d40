#include <algorithm>
#include <cmath>

#include "backend/convert.h"
#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

// The updated parameter in the dtype of `published`, where that is wanted.
void publish(const Tensor& parameter, const Tensor& published) {
  if (published.defined()) convert_elements(parameter.raw(), parameter.dtype(), published.raw(), published.dtype(), parameter.elements());
}

}  // namespace

void Optimizer::adamw(Stream& stream, const AdamWPass& a) {
  host_.launch(stream, "adamw", 0, {a.parameter, a.gradient, a.first_moment, a.second_moment, a.published, a.hyper}, [a] {
    with_type(a.parameter, [&](auto zero) {
      using T = decltype(zero);
      using Hyper = AdamWPass::Hyper;
      const double* hyper = a.hyper.data<double>();
      const double rate = hyper[Hyper::learning_rate], beta1 = hyper[Hyper::beta1], beta2 = hyper[Hyper::beta2];
      T* parameter = a.parameter.data<T>();
      const T* gradient = a.gradient.data<T>();
      T* first = a.first_moment.data<T>();
      T* second = a.second_moment.data<T>();
      for (int64_t i = 0; i < a.parameter.elements(); ++i) {
        const double g = hyper[Hyper::gradient_scale] * gradient[i];
        const double m = beta1 * first[i] + (1.0 - beta1) * g;
        const double v = beta2 * second[i] + (1.0 - beta2) * g * g;
        const double step = (m / hyper[Hyper::correction1]) / (std::sqrt(v / hyper[Hyper::correction2]) + hyper[Hyper::epsilon]);
        first[i] = static_cast<T>(m);
        second[i] = static_cast<T>(v);
        parameter[i] = static_cast<T>(parameter[i] - rate * hyper[Hyper::weight_decay] * parameter[i] - rate * step);
      }
    });
    publish(a.parameter, a.published);
  });
}

void Optimizer::sgd(Stream& stream, const SgdPass& a) {
  host_.launch(stream, "sgd", 0, {a.parameter, a.gradient, a.momentum_buffer, a.published, a.hyper}, [a] {
    with_type(a.parameter, [&](auto zero) {
      using T = decltype(zero);
      using Hyper = SgdPass::Hyper;
      const double* hyper = a.hyper.data<double>();
      const double momentum = hyper[Hyper::momentum];
      const bool first_step = hyper[Hyper::first_step] != 0.0, nesterov = hyper[Hyper::nesterov] != 0.0;
      T* parameter = a.parameter.data<T>();
      const T* gradient = a.gradient.data<T>();
      T* buffer = a.momentum_buffer.data<T>();
      for (int64_t i = 0; i < a.parameter.elements(); ++i) {
        const double g = hyper[Hyper::gradient_scale] * gradient[i];
        const double m = first_step ? g : momentum * buffer[i] + (1.0 - hyper[Hyper::dampening]) * g;
        const double u = nesterov ? g + momentum * m : m;
        buffer[i] = static_cast<T>(m);
        parameter[i] = static_cast<T>(parameter[i] - hyper[Hyper::learning_rate] * (u + hyper[Hyper::weight_decay] * parameter[i]));
      }
    });
    publish(a.parameter, a.published);
  });
}

void Optimizer::muon_momentum(Stream& stream, const MuonMomentum& a) {
  host_.launch(stream, "muon_momentum", 0, {a.gradient, a.momentum_buffer, a.update, a.square_sums, a.hyper}, [a] {
    with_type(a.momentum_buffer, [&](auto zero) {
      using T = decltype(zero);
      const double* hyper = a.hyper.data<double>();
      const double momentum = hyper[MuonMomentum::momentum];
      const double fresh = a.sum_form ? 1.0 : 1.0 - momentum;  // weight of the gradient
      const T* gradient = a.gradient.data<T>();
      T* buffer = a.momentum_buffer.data<T>();
      T* update = a.update.data<T>();
      double* square_sums = optional_data<double>(a.square_sums);
      for (int64_t i = 0; i < a.gradient.elements(); ++i) {
        const double g = hyper[MuonMomentum::gradient_scale] * gradient[i];
        const double m = momentum * buffer[i] + fresh * g;
        buffer[i] = static_cast<T>(m);
        update[i] = static_cast<T>(a.nesterov ? fresh * g + momentum * m : m);
        if (!square_sums) continue;
        if (i % a.chunk == 0) square_sums[i / a.chunk] = 0.0;
        square_sums[i / a.chunk] += static_cast<double>(update[i]) * update[i];
      }
    });
  });
}

void Optimizer::muon_apply(Stream& stream, const MuonApply& a) {
  host_.launch(stream, "muon_apply", 0, {a.parameter, a.update, a.published, a.hyper}, [a] {
    with_type(a.parameter, [&](auto zero) {
      using T = decltype(zero);
      const double* hyper = a.hyper.data<double>();
      const double rate = hyper[MuonApply::learning_rate];
      T* parameter = a.parameter.data<T>();
      const T* update = a.update.data<T>();
      for (int64_t i = 0; i < a.parameter.elements(); ++i)
        parameter[i] =
            static_cast<T>(parameter[i] * (1.0 - rate * hyper[MuonApply::weight_decay]) - rate * hyper[MuonApply::scale] * update[i]);
    });
    publish(a.parameter, a.published);
  });
}

void Optimizer::convert(Stream& stream, const Convert& c) {
  host_.launch(stream, "convert", 0, {c.in, c.out},
               [c] { convert_elements(c.in.raw(), c.in.dtype(), c.out.raw(), c.out.dtype(), c.in.elements()); });
}

void Optimizer::square_sums(Stream& stream, const SquareSums& s) {
  host_.launch(stream, "square_sums", 0, {s.in, s.out}, [s] {
    with_floating_type(s.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = s.in.data<T>();
      double* out = s.out.data<double>();
      for (int64_t i = 0; i < s.in.elements(); ++i) {
        if (i % s.chunk == 0) out[i / s.chunk] = 0.0;
        out[i / s.chunk] += widen(in[i]) * widen(in[i]);
      }
    });
  });
}

void Optimizer::sum(Stream& stream, const Sum& s) {
  host_.launch(stream, "sum", 0, {s.in, s.out}, [s] {
    with_floating_type(s.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = s.in.data<T>();
      double total = 0;
      for (int64_t i = 0; i < s.in.elements(); ++i) total += widen(in[i]);
      s.out.data<double>()[0] = total;
    });
  });
}

void Optimizer::count_non_finite(Stream& stream, const CountNonFinite& c) {
  host_.launch(stream, "count_non_finite", 0, {c.in, c.out}, [c] {
    with_floating_type(c.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = c.in.data<T>();
      int64_t count = 0;
      for (int64_t i = 0; i < c.in.elements(); ++i) count += std::isfinite(widen(in[i])) ? 0 : 1;
      c.out.data<int64_t>()[0] = count;
    });
  });
}

}  // namespace dmuon::reference
