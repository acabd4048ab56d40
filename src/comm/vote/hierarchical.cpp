// The flat vote in two levels (H1): counts inside the nodes, exact sums of counts between them.
//
// A worker of a node counts one slice of the words of its node, exchanges the counts, c bits an element, with the workers
// of equal place in the other nodes, each of whom votes on a part of the slice; the results are gathered between the
// nodes and then inside them. A vote on the votes of nodes would cost fewer bytes and be another result.
#include "comm/vote/transports.h"
#include "dmuon/core/checked.h"

namespace dmuon::vote {
namespace {

class Hierarchical final : public Transport {
 public:
  Hierarchical(Backend& backend, Communicator& group, NodeGroups groups, int64_t words, std::string choice)
      : Transport(backend, group, VoteTransportKind::hierarchical, words, std::move(choice)),
        node_(std::move(groups.node)),
        column_(std::move(groups.column)),
        bits_(vote_count_bits(group.size(), column_->size())) {
    const int64_t slice = divide_up(words, node_->size());
    received_ = scratch(*node_, node_->size() * slice, DType::int64, "slices of votes");
    counts_ = scratch(*column_, bits_ * slice, DType::int64, "counts of the node");
    all_counts_ = scratch(*column_, bits_ * round_up(slice, column_->size()), DType::int64, "counts of all nodes");
  }

  TrafficBytes traffic() const override {
    const TrafficBytes inside = node_->traffic();
    const TrafficBytes between = column_->traffic();
    return {inside.inside + between.inside, inside.between + between.between};
  }

  void set_deadline(double seconds) override {
    Transport::set_deadline(seconds);
    node_->set_deadline(seconds);
    column_->set_deadline(seconds);
  }

 private:
  void count(Stream& stream, const Tensor& words, int64_t any_words, int tie_breaker) override {
    const std::vector<int64_t> slices = slice_cuts(words.elements(), node_->size());
    const int64_t first = slices[static_cast<size_t>(node_->rank())];
    const int64_t length = slices[static_cast<size_t>(node_->rank()) + 1] - first;
    const std::vector<int64_t> parts = slice_cuts(length, column_->size());
    const Tensor slice = words.flat(first, length);

    node_->describe_next("votes in the node");
    node_->all_to_all_v(stream, words, slices, received_, equal_cuts(length, node_->size()));
    exchange_counts(stream, length, parts, tie_breaker);
    vote_on_part(stream, slice, first, parts, any_words, tie_breaker);
    column_->describe_next("results of the vote between nodes");
    column_->all_gather_v(stream, slice, parts);
    node_->describe_next("results of the vote in the node");
    node_->all_gather_v(stream, words, slices);
  }

  // The counts of a part lie together, plane after plane, for the node that votes on it.
  void exchange_counts(Stream& stream, int64_t length, const std::vector<int64_t>& parts, int tie_breaker) {
    std::vector<int64_t> send{0};
    for (size_t node = 0; node + 1 < parts.size(); ++node) {
      const int64_t part = parts[node + 1] - parts[node];
      send.push_back(send.back() + bits_ * part);
      if (part == 0) continue;
      std::vector<Tensor> inputs;
      for (int w = 0; w < node_->size(); ++w) inputs.push_back(received_.flat(w * length + parts[node], part));
      backend_.signs().count(stream, {std::move(inputs), counts_.flat(send[node], bits_ * part), twice(tie_breaker)});
    }
    column_->describe_next("counts of votes");
    column_->all_to_all_v(stream, counts_, send, all_counts_, equal_cuts(bits_ * own_part(parts), column_->size()));
  }

  void vote_on_part(Stream& stream, const Tensor& slice, int64_t slice_first, const std::vector<int64_t>& parts, int64_t any_words,
                    int tie_breaker) {
    const int64_t part = own_part(parts);
    if (part == 0) return;
    const int64_t first = parts[static_cast<size_t>(column_->rank())];
    std::vector<Tensor> planes;
    for (int node = 0; node < column_->size(); ++node) planes.push_back(all_counts_.flat(node * bits_ * part, bits_ * part));
    backend_.signs().vote_counts(stream, {std::move(planes), slice.flat(first, part), any_words_of(any_words, slice_first + first, part),
                                          group_.size() + (tie_breaker >= 0 ? 1 : 0)});
  }

  int64_t own_part(const std::vector<int64_t>& parts) const {
    const size_t node = static_cast<size_t>(column_->rank());
    return parts[node + 1] - parts[node];
  }

  // The place of the worker that breaks ties, if it is of this node.
  int twice(int tie_breaker) const {
    if (tie_breaker < 0 || group_.node(tie_breaker) != group_.node(group_.rank())) return -1;
    int place = 0;
    for (int r = 0; r < tie_breaker; ++r) place += group_.node(r) == group_.node(tie_breaker);
    return place;
  }

  std::shared_ptr<Communicator> node_, column_;
  int64_t bits_;       // of a count
  Tensor received_;    // [workers of the node, longest slice]
  Tensor counts_;      // [bits, longest slice], part after part
  Tensor all_counts_;  // [nodes, bits, longest part]
};

}  // namespace

std::unique_ptr<VoteTransport> make_hierarchical(Backend& backend, Communicator& group, NodeGroups groups, int64_t words,
                                                 std::string choice) {
  return std::make_unique<Hierarchical>(backend, group, std::move(groups), words, std::move(choice));
}

}  // namespace dmuon::vote
