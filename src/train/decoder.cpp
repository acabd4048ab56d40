#include "train/decoder.h"

#include <algorithm>
#include <numeric>

namespace dmuon {

Decoder::Decoder(Backend& backend, Model& model, int64_t capacity, bool cached)
    : backend_(backend), model_(model), capacity_(capacity), cached_(cached) {}

Tensor Decoder::forward(std::span<const int32_t> ids, std::span<const int32_t> positions, int64_t sequences, ModelCache* cache) {
  ExecutionContext context{backend_, backend_.compute_stream()};
  const Shape shape{sequences, static_cast<int64_t>(ids.size()) / sequences};
  const Tensor tokens = backend_.allocate(shape, DType::int32, MemoryCategory::data, "tokens");
  const Tensor places = backend_.allocate(shape, DType::int32, MemoryCategory::data, "positions");
  backend_.copy_from_host(context.stream, ids.data(), tokens);
  backend_.copy_from_host(context.stream, positions.data(), places);
  const Tensor result = model_.forward(context, tokens, places, cache, true).value();
  if (result.dtype() == DType::float32) return result;
  const Tensor wide = backend_.allocate(result.shape(), DType::float32, MemoryCategory::activations, "logits");
  backend_.copy(context.stream, result, wide);
  return wide;
}

void Decoder::keep_logits(const Tensor& logits, size_t text) {
  columns_ = static_cast<size_t>(logits.size(-1));
  logits_.resize(texts_.size() * columns_);
  backend_.copy_to_host(backend_.compute_stream(), logits, logits_.data() + text * columns_);
}

// Row `row` alone, and empty.
ModelCache Decoder::row_of_cache(size_t row) const {
  ModelCache view;
  for (const AttentionCache& layer : cache_.layers)
    view.layers.push_back({layer.key.slice(static_cast<int64_t>(row), 1), layer.value.slice(static_cast<int64_t>(row), 1), {0}});
  return view;
}

void Decoder::copy_row(size_t from, size_t to) {
  Stream& stream = backend_.compute_stream();
  for (AttentionCache& layer : cache_.layers) {
    for (const Tensor* store : {&layer.key, &layer.value})
      backend_.copy(stream, store->slice(static_cast<int64_t>(from), 1), store->slice(static_cast<int64_t>(to), 1));
    layer.lengths[to] = layer.lengths[from];
  }
  std::copy_n(logits_.data() + from * columns_, columns_, logits_.data() + to * columns_);
}

void Decoder::read(std::span<const std::span<const int32_t>> texts) {
  texts_.clear();
  for (const auto& text : texts) texts_.emplace_back(text.begin(), text.end());
  if (cached_ && cache_.layers.empty()) cache_ = model_.make_cache(backend_, static_cast<int64_t>(texts_.size()), capacity_);
  read_all();
}

void Decoder::read_all() {
  for (size_t row = 0; row < texts_.size(); ++row) {
    const auto equal = std::find(texts_.begin(), texts_.begin() + static_cast<std::ptrdiff_t>(row), texts_[row]) - texts_.begin();
    if (const auto twin = static_cast<size_t>(equal); twin < row && cached_)
      copy_row(twin, row);
    else
      read_row(row);
  }
}

void Decoder::read_row(size_t row) {
  const std::vector<int32_t>& text = texts_[row];
  std::vector<int32_t> positions(text.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (!cached_) {
    keep_logits(forward(text, positions, 1, nullptr), row);
    return;
  }
  ModelCache view = row_of_cache(row);
  keep_logits(forward(text, positions, 1, &view), row);
  for (size_t layer = 0; layer < cache_.layers.size(); ++layer) keep_row(view.layers[layer], row, cache_.layers[layer]);
}

// The first pass may have made the memory of its row anew, in the dtype of the keys: then all rows get that dtype.
void Decoder::keep_row(const AttentionCache& view, size_t row, AttentionCache& whole) {
  const auto keep = [&](const Tensor& part, Tensor& store) {
    if (part.dtype() == store.dtype()) return;
    store = backend_.allocate(store.shape(), part.dtype(), MemoryCategory::activations, "attention cache");
    backend_.copy(backend_.compute_stream(), part, store.slice(static_cast<int64_t>(row), 1));
  };
  keep(view.key, whole.key);
  keep(view.value, whole.value);
  whole.lengths[row] = view.lengths.front();
}

void Decoder::read_again(size_t text, std::span<const int32_t> ids) {
  texts_[text].assign(ids.begin(), ids.end());
  read_row(text);
}

void Decoder::clear(size_t text) {
  texts_[text].clear();
  for (AttentionCache& layer : cache_.layers) layer.lengths[text] = 0;
}

void Decoder::append(std::span<const int32_t> ids) {
  std::vector<int32_t> positions;
  for (size_t row = 0; row < texts_.size(); ++row) {
    positions.push_back(static_cast<int32_t>(texts_[row].size()));
    texts_[row].push_back(ids[row]);
  }
  if (!cached_) {
    for (size_t row = 0; row < texts_.size(); ++row) read_row(row);
    return;
  }
  keep_logits(forward(ids, positions, static_cast<int64_t>(ids.size()), &cache_), 0);
}

void Decoder::remove(size_t text) {
  const size_t last = texts_.size() - 1;
  const auto at = static_cast<std::ptrdiff_t>(text);
  texts_.erase(texts_.begin() + at);
  logits_.erase(logits_.begin() + at * static_cast<std::ptrdiff_t>(columns_),
                logits_.begin() + (at + 1) * static_cast<std::ptrdiff_t>(columns_));
  if (!cached_) return;
  Stream& stream = backend_.compute_stream();
  for (AttentionCache& layer : cache_.layers) {
    layer.lengths.erase(layer.lengths.begin() + at);
    for (Tensor* store : {&layer.key, &layer.value}) {
      for (size_t row = text; row < last; ++row)
        backend_.copy(stream, store->slice(static_cast<int64_t>(row) + 1, 1), store->slice(static_cast<int64_t>(row), 1));
      if (last > 0) *store = store->slice(0, static_cast<int64_t>(last));
    }
  }
}

}  // namespace dmuon
