// Texts of any lengths on their way through a model: prompts in, logits of the next token out, with one key/value cache.
#pragma once

#include <span>
#include <vector>

#include "dmuon/nn/model.h"

namespace dmuon {

class Decoder {
 public:
  // `capacity`: positions that the cache holds, at most the model's context. Without `cached` everything is read again at each
  // step.
  Decoder(Backend& backend, Model& model, int64_t capacity, bool cached);

  // Replaces what it knows by these texts (of lengths from 1 to the capacity), each read by a pass of its own, equal ones once; the cache
  // is made by the first call for that number of texts, which no later one may exceed.
  void read(std::span<const std::span<const int32_t>> texts);
  // Replaces one text; or leaves it empty, with logits of nothing until it is read again.
  void read_again(size_t text, std::span<const int32_t> ids);
  void clear(size_t text);
  // One token more for every text; one pass for all of them.
  void append(std::span<const int32_t> ids);
  // Forgets a text; those behind it move up.
  void remove(size_t text);

  size_t texts() const { return texts_.size(); }
  int64_t length(size_t text) const { return static_cast<int64_t>(texts_[text].size()); }  // no append where it is the capacity
  // Of the token after the last one; all the model's columns. Valid until the next call.
  std::span<float> logits(size_t text) { return std::span(logits_).subspan(text * columns_, columns_); }

 private:
  Tensor forward(std::span<const int32_t> ids, std::span<const int32_t> positions, int64_t sequences, ModelCache* cache);
  void keep_logits(const Tensor& logits, size_t text);
  void read_row(size_t row);
  void read_all();
  void copy_row(size_t from, size_t to);
  ModelCache row_of_cache(size_t row) const;
  void keep_row(const AttentionCache& view, size_t row, AttentionCache& whole);

  Backend& backend_;
  Model& model_;
  int64_t capacity_;
  bool cached_;
  std::vector<std::vector<int32_t>> texts_;
  ModelCache cache_;  // empty without a cache
  std::vector<float> logits_;
  size_t columns_ = 0;
};

}  // namespace dmuon
