#include "comm/collective_matrix.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "dmuon/core/text.h"

namespace dmuon::testing {
namespace {

// Values whose sums round differently in every order.
template <class T>
T value_at(int rank, int64_t index, int salt) {
  uint64_t h = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9ull +
               static_cast<uint64_t>(salt) * 0x94d049bb133111ebull;
  h ^= h >> 31;
  h *= 0xd6e8feb86659fd93ull;
  h ^= h >> 32;
  const double unit = static_cast<double>(h >> 11) / 9007199254740992.0 - 0.5;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(h);
  else
    return static_cast<T>(static_cast<float>(unit * std::exp2(static_cast<double>(h % 24))));
}

struct Opened {
  explicit Opened(const Tensor& t) : tensor(t) { tensor.storage()->open(); }
  ~Opened() { tensor.storage()->close(); }
  Tensor tensor;
};

template <class T>
Tensor make(Allocator& allocator, int64_t elements) {
  return Tensor(allocator.allocate(elements * static_cast<int64_t>(sizeof(T)), MemoryCategory::gradients, "test"), 0, Shape{elements},
                DTypeOf<T>::value);
}

template <class T>
Tensor make(Matrix& m, int64_t elements) {
  if (m.device == nullptr) return make<T>(m.allocator, elements);
  return m.device->allocate(Shape{elements}, DTypeOf<T>::value, MemoryCategory::gradients, "test");
}

// A buffer of a collective.
template <class T>
Tensor buffer_of(Matrix& m, int64_t elements) {
  if (m.backend == nullptr) return make<T>(m, elements);
  return m.group.allocate(*m.backend, {elements}, DTypeOf<T>::value, MemoryCategory::gradients, "shared");
}

// The host's view of a tensor. `device`: the backend whose memory it is, null for the host's own.
template <class T>
void write(Backend* device, const Tensor& tensor, const std::function<T(int64_t)>& value) {
  std::vector<T> host(static_cast<size_t>(tensor.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) host[static_cast<size_t>(i)] = value(i);
  if (host.empty()) return;
  if (device == nullptr) {
    const Opened opened(tensor);
    std::memcpy(tensor.raw(), host.data(), host.size() * sizeof(T));
    return;
  }
  device->copy_from_host(device->compute_stream(), host.data(), tensor);
  device->compute_stream().synchronize();
}

template <class T>
std::vector<T> read(Backend* device, const Tensor& tensor) {
  std::vector<T> host(static_cast<size_t>(tensor.elements()));
  if (host.empty()) return host;
  if (device == nullptr) {
    const Opened opened(tensor);
    std::memcpy(host.data(), tensor.raw(), host.size() * sizeof(T));
  } else {
    device->copy_to_host(device->compute_stream(), tensor, host.data());
  }
  return host;
}

template <class T>
void fill(Backend* device, const Tensor& tensor, int rank, int salt) {
  write<T>(device, tensor, [&](int64_t i) { return value_at<T>(rank, i, salt); });
}

template <class T>
int64_t first_difference(Backend* device, const Tensor& tensor, const std::function<T(int64_t)>& expected) {
  const std::vector<T> found = read<T>(device, tensor);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const T want = expected(i);
    if (std::memcmp(&found[static_cast<size_t>(i)], &want, sizeof(T)) != 0) return i;
  }
  return -1;
}

template <class T>
using Accumulated = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

// Serial, in rank order.
template <class T>
Accumulated<T> reduced(int ranks, int64_t index, int salt, ReduceOperation operation) {
  using A = Accumulated<T>;
  A result = static_cast<A>(value_at<T>(0, index, salt));
  for (int r = 1; r < ranks; ++r) {
    const A next = static_cast<A>(value_at<T>(r, index, salt));
    if (operation == ReduceOperation::sum) {
      if constexpr (std::is_integral_v<A>)
        result = static_cast<A>(static_cast<std::make_unsigned_t<A>>(result) + static_cast<std::make_unsigned_t<A>>(next));
      else
        result = result + next;
    } else if (operation == ReduceOperation::maximum) {
      result = std::max(result, next);
    } else {
      result = std::min(result, next);
    }
  }
  return result;
}

// Cuts of `elements` among the ranks: 0 even, 1 random uneven, 2 everything to the last, 3 everything to the first,
// 4 a gap before and behind.
std::vector<int64_t> make_cuts(int ranks, int64_t elements, int kind) {
  std::vector<int64_t> cuts{0};
  for (int r = 1; r < ranks; ++r) {
    if (kind == 0)
      cuts.push_back(elements * r / ranks);
    else if (kind == 2)
      cuts.push_back(0);
    else if (kind == 3)
      cuts.push_back(elements);
    else
      cuts.push_back(cuts.back() + static_cast<int64_t>(value_at<uint8_t>(r, elements, kind)) * (elements - cuts.back()) / 400);
  }
  cuts.push_back(elements);
  if (kind == 4 && elements > 4) {
    for (int64_t& cut : cuts) cut = std::clamp<int64_t>(cut, 1, elements - 2);
  }
  return cuts;
}

template <class T>
std::vector<int64_t> sizes_for(const Matrix& m) {
  std::vector<int64_t> sizes = m.sizes;
  if (std::is_same_v<T, float>) sizes.push_back(m.large);
  return sizes;
}

template <class T>
void broadcast_of(Matrix& m) {
  for (int64_t elements : sizes_for<T>(m))
    for (int root = 0; root < m.group.size(); ++root) {
      const Tensor data = buffer_of<T>(m, elements);
      fill<T>(m.device, data, m.group.rank(), 1 + root);
      m.group.broadcast(m.stream, data, root);
      m.stream.record().wait();
      const int64_t at = first_difference<T>(m.device, data, [&](int64_t i) { return value_at<T>(root, i, 1 + root); });
      m.check(at < 0, text("broadcast of ", data.to_string(), " from ", root, " differs at ", at));
    }
}

template <class T>
void all_reduce_of(Matrix& m, std::vector<ReduceOperation> operations) {
  for (int64_t elements : sizes_for<T>(m))
    for (ReduceOperation operation : operations) {
      const Tensor data = buffer_of<T>(m, elements);
      fill<T>(m.device, data, m.group.rank(), 7);
      m.group.all_reduce(m.stream, data, operation);
      m.stream.record().wait();
      const int64_t at =
          first_difference<T>(m.device, data, [&](int64_t i) { return static_cast<T>(reduced<T>(m.group.size(), i, 7, operation)); });
      m.check(at < 0, text("all_reduce ", static_cast<int>(operation), " of ", data.to_string(), " differs at ", at));
    }
}

template <class T>
void all_gather_of(Matrix& m) {
  for (int64_t elements : sizes_for<T>(m))
    for (int kind = 0; kind < (elements == m.large ? 2 : 5); ++kind) {
      const std::vector<int64_t> cuts = make_cuts(m.group.size(), elements, kind);
      const Tensor data = buffer_of<T>(m, elements);
      fill<T>(m.device, data, m.group.rank(), 3);
      const auto form = static_cast<GatherForm>(std::is_same_v<T, float> ? kind % 4 : 0);
      m.group.all_gather_v(m.stream, data, cuts, form);
      m.stream.record().wait();
      const int64_t at = first_difference<T>(m.device, data, [&](int64_t i) {
        int owner = m.group.rank();  // outside all segments: untouched
        for (int r = 0; r < m.group.size(); ++r)
          if (i >= cuts[static_cast<size_t>(r)] && i < cuts[static_cast<size_t>(r) + 1]) owner = r;
        return value_at<T>(owner, i, 3);
      });
      m.check(at < 0, text("all_gather_v of ", data.to_string(), " cuts ", kind, " form ", static_cast<int>(form), " differs at ", at));
    }
}

// R as returned.
template <class T, class R = T>
void reduce_scatter_of(Matrix& m) {
  for (int64_t elements : sizes_for<T>(m))
    for (int kind = 0; kind < (elements == m.large ? 2 : 5); ++kind)
      for (int form = 0; form < (std::is_same_v<T, R> ? 3 : 2); ++form) {  // into another tensor, added to it, in place
        const std::vector<int64_t> cuts = make_cuts(m.group.size(), elements, kind);
        const size_t rank = static_cast<size_t>(m.group.rank());
        const int64_t first = cuts[rank];
        const int64_t own = cuts[rank + 1] - first;
        const Tensor data = buffer_of<T>(m, elements);
        fill<T>(m.device, data, m.group.rank(), 5);
        const Tensor result = form == 2 ? data.flat(first, own) : make<R>(m, own);
        if (form == 1) fill<R>(m.device, result, 100, 6);
        m.group.reduce_scatter_v(m.stream, data, cuts, result, form == 1);
        m.stream.record().wait();
        using A = Accumulated<T>;
        const int64_t at = first_difference<R>(m.device, result, [&](int64_t i) {
          const A sum = reduced<T>(m.group.size(), first + i, 5, ReduceOperation::sum);
          if (form != 1) return static_cast<R>(sum);
          const A before = static_cast<A>(value_at<R>(100, i, 6));
          if constexpr (std::is_integral_v<A>)
            return static_cast<R>(static_cast<std::make_unsigned_t<A>>(before) + static_cast<std::make_unsigned_t<A>>(sum));
          else
            return static_cast<R>(before + sum);
        });
        m.check(at < 0, text("reduce_scatter_v of ", data.to_string(), " cuts ", kind, " form ", form, " into ", result.to_string(),
                             " differs at ", at));
        if (form == 2) continue;
        const int64_t changed = first_difference<T>(m.device, data, [&](int64_t i) { return value_at<T>(m.group.rank(), i, 5); });
        m.check(changed < 0, text("reduce_scatter_v of ", data.to_string(), " changed its buffer at ", changed));
      }
}

}  // namespace

void Matrix::barrier() {
  for (int i = 0; i < 20; ++i) group.barrier(stream);
  stream.record().wait();
  check(true, "barrier");
}

void Matrix::broadcast() {
  broadcast_of<float>(*this);
  broadcast_of<uint8_t>(*this);
  broadcast_of<int64_t>(*this);
}

void Matrix::all_reduce() {
  using enum ReduceOperation;
  all_reduce_of<float>(*this, {sum, maximum, minimum});
  all_reduce_of<double>(*this, {sum, maximum});
  all_reduce_of<int64_t>(*this, {sum, maximum});
  all_reduce_of<int32_t>(*this, {sum, minimum});
  all_reduce_of<int16_t>(*this, {sum, maximum});
  all_reduce_of<int8_t>(*this, {sum, minimum});
  all_reduce_of<uint8_t>(*this, {maximum, minimum});
  all_reduce_of<bfloat16>(*this, {sum});
}

void Matrix::all_gather_v() {
  all_gather_of<float>(*this);
  all_gather_of<bfloat16>(*this);
  all_gather_of<int8_t>(*this);
}

void Matrix::reduce_scatter_v() {
  reduce_scatter_of<float>(*this);
  reduce_scatter_of<double>(*this);
  reduce_scatter_of<bfloat16>(*this);
  reduce_scatter_of<bfloat16, float>(*this);
  reduce_scatter_of<int32_t>(*this);
  reduce_scatter_of<int8_t>(*this);
}

void Matrix::all_to_all_v() {
  const int n = group.size();
  for (int64_t unit : {int64_t{0}, int64_t{1}, int64_t{333}, large / 8}) {
    // Rank a sends unit·((a + 2·b) mod 3) elements to rank b.
    const auto count = [&](int a, int b) { return unit * ((a + 2 * b) % 3); };
    std::vector<int64_t> send_cuts{0};
    std::vector<int64_t> receive_cuts{0};
    for (int r = 0; r < n; ++r) {
      send_cuts.push_back(send_cuts.back() + count(group.rank(), r));
      receive_cuts.push_back(receive_cuts.back() + count(r, group.rank()));
    }
    const Tensor out = make<float>(*this, send_cuts.back());
    const Tensor in = make<float>(*this, receive_cuts.back());
    write<float>(device, out, [&](int64_t i) {
      int r = 0;
      while (i >= send_cuts[static_cast<size_t>(r) + 1]) ++r;
      return value_at<float>(group.rank(), i - send_cuts[static_cast<size_t>(r)], r);
    });
    group.all_to_all_v(stream, out, send_cuts, in, receive_cuts);
    stream.record().wait();
    const std::vector<float> found = read<float>(device, in);
    for (int r = 0; r < n; ++r) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < count(r, group.rank()); ++i)
        wrong += found[static_cast<size_t>(receive_cuts[static_cast<size_t>(r)] + i)] != value_at<float>(r, i, group.rank());
      check(wrong == 0, text("all_to_all_v of unit ", unit, " from rank ", r, ": ", wrong, " wrong"));
    }
  }
}

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

void Matrix::everything() {
  barrier();
  broadcast();
  all_reduce();
  all_gather_v();
  reduce_scatter_v();
  all_to_all_v();
  control();
  split();
  nodes();
  null_transport();
  bad_arguments();
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
