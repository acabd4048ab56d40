// Several workers of a voting rule in one process: every worker's message is packed and voted on by the kernels, as a run does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dmuon/optim/update_rule.h"
#include "optim/optimizer_support.h"

namespace dmuon::test {

using Values = std::vector<double>;
using MakeRule = std::function<std::unique_ptr<UpdateRule>()>;

// A vote on pieces of one tensor of the shape, given the messages of all workers for that piece.
inline SignVote vote_of(Backend& backend, const std::vector<Tensor>& messages, const SignSegments& segments, uint64_t key, int64_t step) {
  Stream& stream = backend.compute_stream();
  const int64_t header = sign_header_words(segments), words = sign_words(segments.count);
  const auto buffer = [&] { return backend.allocate(Shape{header + words}, DType::int64, MemoryCategory::workspace, "votes"); };
  VoteSigns vote;
  for (const Tensor& message : messages) {
    const Tensor packed = buffer();
    backend.signs().pack(stream, {message, packed.flat(header, words), packed.flat(0, header), segments, key});
    vote.inputs.push_back(packed);
  }
  vote.result = buffer();
  vote.any_words = header;
  vote.tie_breaker = static_cast<int>(step % static_cast<int64_t>(messages.size()));
  backend.signs().vote(stream, vote);
  return {vote.result.flat(header, words), vote.result.flat(0, header), segments};
}

inline SignSegments whole_segments(const Shape& shape) {
  const int64_t rows = shape.rank() > 1 ? shape[0] : 1;
  return {0, shape.elements(), shape.elements() / rows, 16384};
}

class Workers {
 public:
  Workers(Backend& backend, const MakeRule& make, int count, std::vector<Shape> shapes) : backend_(backend), shapes_(std::move(shapes)) {
    for (int worker = 0; worker < count; ++worker) {
      rules_.push_back(make());
      items_.emplace_back();
      for (size_t i = 0; i < shapes_.size(); ++i) {
        UpdateItem item;
        item.name = "w" + std::to_string(i);
        item.parameter = tensor_of(backend, normal_values(i, shapes_[i].elements()), shapes_[i], DType::float32);
        for (size_t s = 0; s < rules_.back()->state().size(); ++s)
          item.state.push_back(tensor_of(backend, Values(static_cast<size_t>(shapes_[i].elements()), 0.0), shapes_[i], DType::float32));
        items_.back().push_back(std::move(item));
      }
    }
  }

  UpdateItem& item(size_t worker, size_t i) { return items_[worker][i]; }
  UpdateRule& rule(size_t worker) { return *rules_[worker]; }
  size_t count() const { return rules_.size(); }
  Values parameter(size_t i, size_t worker = 0) { return to_doubles(backend_, items_[worker][i].parameter); }
  Values message(size_t i, size_t worker = 0) { return to_doubles(backend_, items_[worker][i].gradient); }
  Values state(size_t s, size_t i, size_t worker = 0) { return to_doubles(backend_, items_[worker][i].state[s]); }

  // One step; gradients[worker][tensor]. Every worker applies the vote to its own copy.
  void step(int64_t number, double rate, const std::vector<std::vector<Values>>& gradients, double scale = 1.0) {
    Stream& stream = backend_.compute_stream();
    for (size_t worker = 0; worker < count(); ++worker) {
      for (size_t i = 0; i < shapes_.size(); ++i) {
        items_[worker][i].gradient = tensor_of(backend_, gradients[worker][i], shapes_[i], DType::float32);
        items_[worker][i].vote = {};
      }
      rules_[worker]->prepare(backend_, stream, {number, rate, scale});
      rules_[worker]->local(backend_, stream, items_[worker]);
    }
    for (size_t i = 0; i < shapes_.size(); ++i) {
      std::vector<Tensor> messages;
      for (auto& items : items_) messages.push_back(items[i].gradient);
      const SignVote vote = vote_of(backend_, messages, whole_segments(shapes_[i]), sign_key(1, number, items_[0][i].name), number);
      for (auto& items : items_) items[i].vote = vote;
    }
    for (size_t worker = 0; worker < count(); ++worker) {
      std::vector<UpdateItem> without = items_[worker];  // the global half does without gradients and local state
      for (UpdateItem& item : without) {
        item.gradient = {};
        for (size_t s = 0; s < item.state.size(); ++s)
          if (rules_[worker]->state()[s].local) item.state[s] = {};
      }
      rules_[worker]->global(backend_, stream, without);
    }
  }

 private:
  Backend& backend_;
  std::vector<Shape> shapes_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<std::vector<UpdateItem>> items_;  // by worker
};

}  // namespace dmuon::test
