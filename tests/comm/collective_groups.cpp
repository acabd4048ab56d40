// Control operations, groups that are split off or used at once, and what is refused.
#include <chrono>
#include <thread>

#include "comm/collective_elements.h"

namespace dmuon::testing {

void Matrix::control() {
  const std::string mine(static_cast<size_t>(group.rank()) * 1000003u, static_cast<char>('a' + group.rank()));  // rank 0: empty
  const std::vector<std::string> all = group.all_gather_text(mine);
  for (int r = 0; r < group.size(); ++r)
    check(all[static_cast<size_t>(r)] == std::string(static_cast<size_t>(r) * 1000003u, static_cast<char>('a' + r)), "all_gather_text");
  for (int root = 0; root < group.size(); ++root)
    check(group.broadcast_text(text("from ", group.rank()), root) == text("from ", root), "broadcast_text");

  std::vector<double> values;
  for (int i = 0; i < 5; ++i) values.push_back(value_at<double>(group.rank(), i, 9));
  const std::vector<double> sums = group.all_reduce(values, ReduceOperation::sum);
  const std::vector<double> maxima = group.all_reduce(values, ReduceOperation::maximum);
  for (int i = 0; i < 5; ++i) {
    check(sums[static_cast<size_t>(i)] == reduced<double>(group.size(), i, 9, ReduceOperation::sum), "sum of values");
    check(maxima[static_cast<size_t>(i)] == reduced<double>(group.size(), i, 9, ReduceOperation::maximum), "maximum of values");
  }
  const std::vector<double> many(50000, 1.0);
  check(group.all_reduce(many, ReduceOperation::sum) == std::vector<double>(50000, group.size()), "many values");
  std::vector<double> maybe_nan{group.rank() == group.size() - 1 ? std::nan("") : 1.0};
  check(std::isnan(group.all_reduce(maybe_nan, ReduceOperation::maximum)[0]), "a NaN survives a maximum");

  group.agree(true, "", ExitCode::done);
  const int culprit = group.size() / 2;
  try {
    group.agree(group.rank() < culprit, text("disk of rank ", group.rank(), " is full"), ExitCode::storage);
    check(false, "agree let a failure pass");
  } catch (const Error& error) {
    const std::string what = error.what();
    check(error.exit_code() == ExitCode::storage, "agree keeps the exit code");
    check(what.find(text("disk of rank ", culprit, " is full")) != std::string::npos, text("agree says: ", what));
    if (group.size() > 1)
      check(what.find(text("rank ", culprit, " (", group.host(culprit), ")")) == 0, text("agree names the rank: ", what));
  }
  group.agree(true, "", ExitCode::done);  // the group goes on
}

void Matrix::split() {
  // Odd and even ranks, in reverse order.
  const auto half = group.split(group.rank() % 2, -group.rank(), "halves");
  std::vector<int> members;
  for (int r = group.size() - 1; r >= 0; --r)
    if (r % 2 == group.rank() % 2) members.push_back(r);
  check(half->size() == static_cast<int>(members.size()), "size of a half");
  check(members[static_cast<size_t>(half->rank())] == group.rank(), "rank in a half");
  const Tensor data = make<float>(*this, 5000);
  fill<float>(device, data, group.rank(), 11);
  half->all_reduce(stream, data, ReduceOperation::sum);
  stream.record().wait();
  const int64_t at = first_difference<float>(device, data, [&](int64_t i) {
    float sum = value_at<float>(members[0], i, 11);
    for (size_t m = 1; m < members.size(); ++m) sum += value_at<float>(members[m], i, 11);
    return sum;
  });
  check(at < 0, text("all_reduce in a half differs at ", at));
  group.barrier(stream);
  stream.record().wait();
}

void Matrix::nodes() {
  check(group.node(0) == 0, "the first node is 0");
  for (int nodes = 1; nodes <= group.size(); ++nodes) {
    if (group.size() % nodes != 0) {
      bool refused = false;
      try {
        group.divide_into_nodes(nodes, "virtual nodes");
      } catch (const ConfigError&) {
        refused = true;
      }
      check(refused, "nodes that do not divide the ranks are refused");
      continue;
    }
    const auto divided = group.divide_into_nodes(nodes, "virtual nodes");
    const int per_node = group.size() / nodes;
    check(divided->rank() == group.rank() && divided->size() == group.size(), "the same ranks");
    for (int r = 0; r < group.size(); ++r) check(divided->node(r) == r / per_node, "node of a rank");
    Matrix{*divided, stream, allocator, check, {1, 4099}, 70001, nullptr, device}.all_reduce();
    const TrafficBytes traffic = divided->traffic();
    check((traffic.inside > 0) == (per_node > 1), text("bytes inside virtual nodes: ", traffic.inside));
    check((traffic.between > 0) == (nodes > 1), text("bytes between virtual nodes: ", traffic.between));
    // A column of one rank per node has no traffic inside.
    const auto column = divided->split(group.rank() % per_node, group.rank(), "column");
    check(column->size() == nodes && column->node(column->size() - 1) == nodes - 1, "a column keeps its nodes");
    Matrix{*column, stream, allocator, check, {4099}, 70001, nullptr, device}.reduce_scatter_v();
    check(column->traffic().inside == 0, "a column sends between nodes only");
  }
}

void Matrix::null_transport() {
  const auto silent = std::make_shared<std::atomic<bool>>(true);
  const auto null = make_null_communicator(group, silent);
  const auto part = null->split(0, group.rank(), "null");
  check(null->size() == group.size() && part->rank() == group.rank(), "ranks of the null transport");
  const Tensor data = make<float>(*this, 1000);
  const auto untouched = [&] {
    return first_difference<float>(device, data, [&](int64_t i) { return value_at<float>(group.rank(), i, 13); }) < 0;
  };
  fill<float>(device, data, group.rank(), 13);
  const int64_t before = part->bytes_sent();
  part->all_reduce(stream, data, ReduceOperation::sum);
  part->broadcast(stream, data, 0);
  stream.record().wait();
  check(untouched() && part->bytes_sent() == before, "the null transport moves nothing");
  const double one = 1;
  check(part->all_reduce(std::span(&one, 1), ReduceOperation::sum)[0] == group.size(), "control operations are real");
  *silent = false;
  Matrix{*part, stream, allocator, check, {1009}, 1, nullptr, device}.all_reduce();
}

void Matrix::bad_arguments() {
  const auto expect = [&](const char* what, const std::function<void()>& call, const std::string& named) {
    try {
      call();
      check(false, text(what, " was accepted"));
    } catch (const ShapeError& error) {
      check(std::string(error.what()).find(named) != std::string::npos, text(what, " says: ", error.what()));
    }
  };
  const Tensor data = make<float>(*this, 10);
  const Tensor bytes = make<uint8_t>(*this, 10);
  std::vector<int64_t> cuts(static_cast<size_t>(group.size()) + 1, 10);
  expect(
      "a missing root", [&] { group.broadcast(stream, data, group.size()); }, text("root ", group.size()));
  expect(
      "a short list of cuts", [&] { group.all_gather_v(stream, data, std::span(cuts).subspan(1)); }, "cuts");
  cuts.back() = 11;
  expect(
      "a cut behind the buffer", [&] { group.all_gather_v(stream, data, cuts); }, "11");
  cuts.back() = 9;
  expect(
      "a descending cut", [&] { group.all_gather_v(stream, data, cuts); }, "ascend");
  cuts.back() = 10;
  expect(
      "a result of the wrong size", [&] { group.reduce_scatter_v(stream, data, cuts, data.flat(0, 3), false); }, "result");
  expect(
      "a sum of bytes", [&] { group.all_reduce(stream, bytes, ReduceOperation::sum); }, "uint8");
}
void two_groups(Communicator& world, Allocator& allocator, const Check& check) {
  const auto reduce_group = world.split(0, world.rank(), "gradients");
  const auto publish_group = world.split(0, world.rank(), "parameters");
  const auto reduce_stream = make_worker_stream("reduce");
  const auto publish_stream = make_worker_stream("publish");
  constexpr int units = 8;
  constexpr int64_t elements = 60001;
  std::vector<int64_t> cuts;
  for (int r = 0; r <= world.size(); ++r) cuts.push_back(elements * r / world.size());
  const int64_t first = cuts[static_cast<size_t>(world.rank())];
  const int64_t own = cuts[static_cast<size_t>(world.rank()) + 1] - first;

  std::vector<Tensor> gradients;
  std::vector<Tensor> parameters;
  for (int u = 0; u < units; ++u) {
    gradients.push_back(make<float>(allocator, elements));
    parameters.push_back(make<float>(allocator, elements));
    fill<float>(nullptr, gradients.back(), world.rank(), 20 + u);
    fill<float>(nullptr, parameters.back(), world.rank(), 40 + u);
  }
  std::vector<Event> done;
  for (int u = 0; u < units; ++u) {
    // Other work between the operations, in another place on every rank.
    if (u % world.size() == world.rank()) reduce_stream->submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    if ((u + 1) % world.size() == world.rank()) publish_stream->submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(8)); });
    const Tensor& gradient = gradients[static_cast<size_t>(u)];
    reduce_group->reduce_scatter_v(*reduce_stream, gradient, cuts, gradient.flat(first, own), false);
    publish_group->all_gather_v(*publish_stream, parameters[static_cast<size_t>(u)], cuts);
    done.push_back(reduce_stream->record());
    done.push_back(publish_stream->record());
  }
  // Control operations of the main thread run beside both.
  const double one = 1;
  check(world.all_reduce(std::span(&one, 1), ReduceOperation::sum)[0] == world.size(), "a control operation beside the streams");
  for (const Event& event : done) event.wait();
  for (int u = 0; u < units; ++u) {
    int64_t at = first_difference<float>(nullptr, gradients[static_cast<size_t>(u)].flat(first, own),
                                         [&](int64_t i) { return reduced<float>(world.size(), first + i, 20 + u, ReduceOperation::sum); });
    check(at < 0, text("unit ", u, ": reduced gradients differ at ", at));
    at = first_difference<float>(nullptr, parameters[static_cast<size_t>(u)], [&](int64_t i) {
      int owner = 0;
      while (i >= cuts[static_cast<size_t>(owner) + 1]) ++owner;
      return value_at<float>(owner, i, 40 + u);
    });
    check(at < 0, text("unit ", u, ": published parameters differ at ", at));
  }
  reduce_stream->synchronize();
  publish_stream->synchronize();
}

}  // namespace dmuon::testing
