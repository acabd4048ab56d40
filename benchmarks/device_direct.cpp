#include "device_direct.h"

#include <algorithm>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/text.h"

namespace dmuon::bench {
namespace {

std::vector<Tensor> listed(std::span<const Tensor> tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace

std::string DirectForm::name() const { return single ? "one by one" : text("batches of ", batch); }

std::vector<DirectForm> direct_forms(int64_t count) {
  std::vector<DirectForm> forms{{1, true}};
  // Few matrices at a time stay in the cache, all of them fill the device.
  if (count > 4) forms.push_back({4, false});
  forms.push_back({count, false});
  return forms;
}

DeviceDirect::DeviceDirect(Backend& backend, const Shape& shape, const DirectForm& form)
    : backend_(backend), form_(form), tall_(shape[0] > shape[1]) {
  const DType dtype = device_updates(backend)->product_dtype();
  const int64_t side = std::min(shape[0], shape[1]);
  const auto scratch = [&](const Shape& of) { return backend.allocate(of, dtype, MemoryCategory::workspace, "direct form"); };
  for (int64_t i = 0; i < form.batch; ++i) {
    for (std::vector<Tensor>& x : x_) x.push_back(scratch(shape));
    gram_.push_back(scratch(Shape{side, side}));
    factor_.push_back(scratch(Shape{side, side}));
  }
}

std::span<const Tensor> DeviceDirect::queue(Stream& stream, const CoefficientSet& set, std::span<const Tensor> updates,
                                            std::span<const Tensor> square_sums) {
  const size_t count = updates.size();
  for (size_t i = 0; i < count; ++i) {
    Normalize normalize;
    normalize.in = updates[i], normalize.square_sums = square_sums[i], normalize.out = x_[0][i];
    backend_.optimizer().normalize(stream, normalize);
  }
  for (int i = 0; i < set.iterations; ++i) {
    const auto& [a, b, c] = set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)];
    const auto from = std::span<const Tensor>(x_[i % 2]).first(count), to = std::span<const Tensor>(x_[(i + 1) % 2]).first(count);
    square(stream, from);
    polynomial(stream, b, c, count);
    apply(stream, a, from, to);
  }
  return std::span<const Tensor>(x_[set.iterations % 2]).first(count);
}

void DeviceDirect::square(Stream& stream, std::span<const Tensor> x) {
  if (form_.single) {
    Multiply product;
    product.a = product.b = x[0], product.c = gram_[0], (tall_ ? product.transpose_a : product.transpose_b) = true;
    return backend_.matrix().multiply(stream, product);
  }
  BatchedProduct product;
  product.a = product.b = listed(x), product.d = listed(std::span(gram_).first(x.size()));
  (tall_ ? product.transpose_a : product.transpose_b) = true;
  backend_.matrix().batched_product(stream, product);
}

void DeviceDirect::polynomial(Stream& stream, double b, double c, size_t count) {
  if (form_.single) {
    Multiply product;
    product.a = product.b = gram_[0], product.c = factor_[0], product.alpha = c, product.beta = b;
    backend_.copy(stream, gram_[0], factor_[0]);
    return backend_.matrix().multiply(stream, product);
  }
  BatchedProduct product;
  product.a = product.b = product.c = listed(std::span(gram_).first(count)), product.d = listed(std::span(factor_).first(count));
  product.alpha = c, product.beta = b;
  backend_.matrix().batched_product(stream, product);
}

void DeviceDirect::apply(Stream& stream, double a, std::span<const Tensor> from, std::span<const Tensor> to) {
  if (form_.single) {
    Multiply product;
    product.a = tall_ ? from[0] : factor_[0], product.b = tall_ ? factor_[0] : from[0], product.c = to[0], product.beta = a;
    backend_.copy(stream, from[0], to[0]);
    return backend_.matrix().multiply(stream, product);
  }
  BatchedProduct product;
  const std::vector<Tensor> x = listed(from), factors = listed(std::span(factor_).first(from.size()));
  product.a = tall_ ? x : factors, product.b = tall_ ? factors : x, product.c = x, product.d = listed(to), product.beta = a;
  backend_.matrix().batched_product(stream, product);
}

std::vector<Tensor> DeviceDirect::tensors() const {
  std::vector<Tensor> all = gram_;
  for (const std::vector<Tensor>* each : {&x_[0], &x_[1], &factor_}) all.insert(all.end(), each->begin(), each->end());
  return all;
}

}  // namespace dmuon::bench
