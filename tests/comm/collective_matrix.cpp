// The collectives that move tensors.
#include "comm/collective_elements.h"

namespace dmuon::testing {
namespace {

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

}  // namespace dmuon::testing
